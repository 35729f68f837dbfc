//! Tells a file's language by its name.

/// What has no known name or ending.
pub(crate) const OTHER: &str = "Other";

/// Whole names, in lower case.
const NAMES: &[(&str, &str)] = &[
    ("cargo.lock", "Lock file"),
    ("package-lock.json", "Lock file"),
    ("poetry.lock", "Lock file"),
    ("yarn.lock", "Lock file"),
    ("cmakelists.txt", "CMake"),
    ("containerfile", "Dockerfile"),
    ("dockerfile", "Dockerfile"),
    ("gnumakefile", "Makefile"),
    ("justfile", "Just"),
    ("makefile", "Makefile"),
    ("rakefile", "Ruby"),
    ("gemfile", "Ruby"),
    (".bashrc", "Shell"),
    (".profile", "Shell"),
];

/// Endings, in lower case.
const ENDINGS: &[(&str, &str)] = &[
    ("adb", "Ada"),
    ("asm", "Assembly"),
    ("awk", "AWK"),
    ("bash", "Shell"),
    ("bat", "Batch"),
    ("bzl", "Starlark"),
    ("c", "C"),
    ("cc", "C++"),
    ("clj", "Clojure"),
    ("cmake", "CMake"),
    ("cpp", "C++"),
    ("cs", "C#"),
    ("css", "CSS"),
    ("csv", "CSV"),
    ("cxx", "C++"),
    ("d", "D"),
    ("dart", "Dart"),
    ("el", "Emacs Lisp"),
    ("erl", "Erlang"),
    ("ex", "Elixir"),
    ("exs", "Elixir"),
    ("f90", "Fortran"),
    ("fs", "F#"),
    ("go", "Go"),
    ("gradle", "Gradle"),
    ("graphql", "GraphQL"),
    ("groovy", "Groovy"),
    ("h", "C"),
    ("hcl", "HCL"),
    ("hh", "C++"),
    ("hpp", "C++"),
    ("hs", "Haskell"),
    ("htm", "HTML"),
    ("html", "HTML"),
    ("ini", "INI"),
    ("ipynb", "Jupyter"),
    ("java", "Java"),
    ("jl", "Julia"),
    ("js", "JavaScript"),
    ("json", "JSON"),
    ("jsonl", "JSON"),
    ("jsx", "JavaScript"),
    ("kt", "Kotlin"),
    ("kts", "Kotlin"),
    ("less", "CSS"),
    ("lisp", "Lisp"),
    ("lua", "Lua"),
    ("m", "Objective-C"),
    ("md", "Markdown"),
    ("mjs", "JavaScript"),
    ("mk", "Makefile"),
    ("ml", "OCaml"),
    ("mli", "OCaml"),
    ("mm", "Objective-C"),
    ("nim", "Nim"),
    ("nix", "Nix"),
    ("pas", "Pascal"),
    ("php", "PHP"),
    ("pl", "Perl"),
    ("pm", "Perl"),
    ("proto", "Protocol Buffers"),
    ("ps1", "PowerShell"),
    ("py", "Python"),
    ("pyi", "Python"),
    ("r", "R"),
    ("rb", "Ruby"),
    ("rs", "Rust"),
    ("rst", "reStructuredText"),
    ("s", "Assembly"),
    ("sass", "CSS"),
    ("scala", "Scala"),
    ("scm", "Scheme"),
    ("scss", "CSS"),
    ("sh", "Shell"),
    ("sql", "SQL"),
    ("svelte", "Svelte"),
    ("svg", "SVG"),
    ("swift", "Swift"),
    ("tcl", "Tcl"),
    ("tex", "TeX"),
    ("tf", "HCL"),
    ("toml", "TOML"),
    ("ts", "TypeScript"),
    ("tsx", "TypeScript"),
    ("txt", "Text"),
    ("vue", "Vue"),
    ("wat", "WebAssembly"),
    ("wast", "WebAssembly"),
    ("wit", "WIT"),
    ("xml", "XML"),
    ("yaml", "YAML"),
    ("yml", "YAML"),
    ("zig", "Zig"),
    ("zsh", "Shell"),
];

/// The language of the file at `path`.
pub(crate) fn of(path: &str) -> &'static str {
    let name = path.rsplit('/').next().unwrap_or_default().to_lowercase();
    let known = |table: &'static [(&str, &'static str)], word: &str| {
        table.iter().find(|(known, _)| *known == word).map(|(_, language)| *language)
    };
    known(NAMES, &name)
        .or_else(|| {
            let (stem, ending) = name.rsplit_once('.')?;
            // `.c` is a hidden file, not C.
            (!stem.is_empty()).then(|| known(ENDINGS, ending)).flatten()
        })
        .unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use super::{ENDINGS, NAMES, OTHER, of};

    #[test]
    fn by_ending_whatever_its_case() {
        assert_eq!(of("src/main.rs"), "Rust");
        assert_eq!(of("a.b/C.PY"), "Python");
        assert_eq!(of("x.tar.json"), "JSON");
    }

    #[test]
    fn a_whole_name_goes_before_its_ending() {
        assert_eq!(of("CMakeLists.txt"), "CMake");
        assert_eq!(of("deep/Dockerfile"), "Dockerfile");
    }

    #[test]
    fn the_rest_is_other() {
        for path in ["", "LICENSE", ".c", "a.rs/file", "x.", "x.unknown"] {
            assert_eq!(of(path), OTHER, "{path:?}");
        }
    }

    #[test]
    fn no_entry_hides_another() {
        for table in [NAMES, ENDINGS] {
            for (at, (word, _)) in table.iter().enumerate() {
                assert!(!table[at + 1..].iter().any(|(later, _)| later == word), "{word} stands twice");
                assert_eq!(*word, word.to_lowercase());
            }
        }
    }
}
