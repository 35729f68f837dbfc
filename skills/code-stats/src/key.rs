//! The blackboard key of a path's summary.

/// A key has at most 256 bytes; `stats:` and `:summary` are some of them.
const NAME_AT_MOST: usize = 200;

/// `stats:<path>:summary`, with `-` for what a key cannot hold. A path that is too long is known by its end.
pub(crate) fn summary(path: &str) -> String {
    let mut name: String = path
        .trim_matches('/')
        .chars()
        .map(|c| if ":*?[]".contains(c) || c.is_whitespace() || c.is_control() { '-' } else { c })
        .collect();
    if name.is_empty() || name == "." {
        name = "project".into();
    }
    let from = (0..=name.len()).find(|&at| name.len() - at <= NAME_AT_MOST && name.is_char_boundary(at));
    format!("stats:{}:summary", from.and_then(|at| name.get(at..)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::summary;

    #[test]
    fn a_path_is_its_own_name() {
        assert_eq!(summary("host/src"), "stats:host/src:summary");
        assert_eq!(summary("host/"), "stats:host:summary");
    }

    #[test]
    fn the_root_is_the_project() {
        assert_eq!(summary("."), "stats:project:summary");
        assert_eq!(summary(""), "stats:project:summary");
    }

    #[test]
    fn what_a_key_cannot_hold_is_replaced() {
        assert_eq!(summary("a:b *?[x]\n\u{3000}é"), "stats:a-b----x---é:summary");
    }

    #[test]
    fn a_long_path_keeps_its_end_and_its_characters_whole() {
        let key = summary(&"é/".repeat(300));
        assert!(key.len() <= 256, "{}", key.len());
        assert!(key.ends_with("é/é:summary"), "{key}");
    }
}
