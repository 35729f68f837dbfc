//! Text as a person reads it: every character shows, and none does anything else.
//!
//! Names, commands and messages are written by strangers. What steers a terminal, changes the direction of the text, takes no
//! room or looks like an ordinary space is written as an escape, wherever text reaches a person: in a terminal, in JSON,
//! and in what they are asked to approve.

use std::fmt::Write as _;

/// Whether a character shows, and as nothing but itself.
fn shows(c: char) -> bool {
    match c {
        ' '..='~' => true,
        // Letters, marks and symbols that are drawn as nothing. The Debug format knows those of no such category.
        '\u{34f}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2800}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{ffa0}'
        | '\u{1d159}'
        | '\u{e0000}'..='\u{e0fff}' => false,
        // After another character, so that a combining mark is taken for what it is.
        _ => ['_', c].iter().collect::<String>().escape_debug().eq(['_', c]),
    }
}

fn push(text: &mut String, c: char) {
    if shows(c) {
        text.push(c);
    } else {
        text.extend(c.escape_default());
    }
}

/// Text of any number of lines; tabs and line ends stay.
pub(crate) fn text(raw: &str) -> String {
    raw.chars().fold(String::with_capacity(raw.len()), |mut text, c| {
        match c {
            '\n' | '\t' => text.push(c),
            c => push(&mut text, c),
        }
        text
    })
}

/// Text in one line, which tells every two texts apart: a backslash is doubled.
pub(crate) fn line(raw: &str) -> String {
    raw.chars().fold(String::with_capacity(raw.len()), |mut text, c| {
        match c {
            '\\' => text.push_str("\\\\"),
            c => push(&mut text, c),
        }
        text
    })
}

/// The words of a command in one line, each in quotes that would not be one without.
pub(crate) fn words<'a>(words: impl IntoIterator<Item = &'a String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-+./:,=@%".contains(c);
    let shown = words.into_iter().map(|word| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("\"{}\"", line(word).replace('"', "\\\"")),
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// The same JSON, written with escapes in place of what does not show.
pub(crate) fn json(written: &str) -> String {
    written.chars().fold(String::with_capacity(written.len()), |mut text, c| {
        // Line ends are between its parts: within them they are escaped already.
        if c == '\n' || shows(c) {
            text.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What hides, turns or erases: controls, directions, no width, blanks, tags, and what nobody has assigned.
    const INVISIBLE: &[char] = &[
        '\0',
        '\u{7}',
        '\u{8}',
        '\r',
        '\u{b}',
        '\u{1b}',
        '\u{7f}',
        '\u{80}',
        '\u{85}',
        '\u{9b}',
        '\u{9f}',
        '\u{a0}',
        '\u{ad}',
        '\u{34f}',
        '\u{61c}',
        '\u{115f}',
        '\u{1160}',
        '\u{1680}',
        '\u{17b4}',
        '\u{180e}',
        '\u{2000}',
        '\u{2003}',
        '\u{200b}',
        '\u{200c}',
        '\u{200d}',
        '\u{200e}',
        '\u{200f}',
        '\u{2028}',
        '\u{2029}',
        '\u{202a}',
        '\u{202b}',
        '\u{202c}',
        '\u{202d}',
        '\u{202e}',
        '\u{202f}',
        '\u{205f}',
        '\u{2060}',
        '\u{2064}',
        '\u{2066}',
        '\u{2067}',
        '\u{2068}',
        '\u{2069}',
        '\u{206f}',
        '\u{2800}',
        '\u{3000}',
        '\u{3164}',
        '\u{e000}',
        '\u{fe0f}',
        '\u{feff}',
        '\u{ffa0}',
        '\u{fff9}',
        '\u{fffb}',
        '\u{ffff}',
        '\u{110bd}',
        '\u{1d159}',
        '\u{1d173}',
        '\u{e0001}',
        '\u{e0041}',
        '\u{e007f}',
        '\u{e0100}',
        '\u{10ffff}',
    ];

    #[test]
    fn whatever_hides_is_spelt_out() {
        for c in INVISIBLE {
            let escape = c.escape_default().to_string();
            let raw = format!("a{c}b");
            assert_eq!(line(&raw), format!("a{escape}b"));
            assert_eq!(text(&raw), format!("a{escape}b"));
            let written = serde_json::to_string(&raw).unwrap();
            assert!(json(&written).is_ascii(), "{written:?}");
            assert_eq!(serde_json::from_str::<String>(&json(&written)).unwrap(), raw);
        }
        assert_eq!(line("a\nb\t\\n"), "a\\nb\\t\\\\n");
        assert_eq!(text("a\u{1b}[2Jb\r\n\tc\u{9b}\\n"), "a\\u{1b}[2Jb\\r\n\tc\\u{9b}\\n");
    }

    #[test]
    fn what_people_write_is_left_as_it_is() {
        for plain in
            ["~ !\"#$%&'()", "äßé", "e\u{301}", "हिन्दी", "ไทยก็", "עברית", "العربية", "中文かな한글", "→ … “x” 🦀"]
        {
            assert_eq!((line(plain), text(plain), json(plain)), (plain.into(), plain.into(), plain.into()));
        }
    }

    #[test]
    fn words_are_told_apart() {
        let shown = |argv: &[&str]| words(&argv.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(shown(&["git", "commit", "-m", "a b"]), "git commit -m \"a b\"");
        assert_eq!(shown(&["a", "", "b\"c\\", "d\ne", "f\u{202e}"]), r#"a "" "b\"c\\" "d\ne" "f\u{202e}""#);
        assert_ne!(shown(&["a b"]), shown(&["a", "b"]));
        assert_ne!(shown(&["\"a", "b\""]), shown(&["a b"]));
    }
}
