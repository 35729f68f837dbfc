//! Secrets in a text: by the forms that their issuers give them, by the names that they stand behind, and by their entropy.

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    /// What looks like this kind of secret.
    Secret(&'static str),
    /// A long word with much entropy, of no known kind.
    Random,
}

/// A form: how it begins, which characters follow, and how many at least.
struct Form {
    what: &'static str,
    starts: &'static [&'static str],
    follows: fn(char) -> bool,
    least: usize,
}

fn word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn alphanumeric(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

fn upper(c: char) -> bool {
    c.is_ascii_uppercase() || c.is_ascii_digit()
}

const FORMS: [Form; 14] = [
    Form { what: "an AWS access key", starts: &["AKIA", "ASIA"], follows: upper, least: 16 },
    Form {
        what: "a GitHub token",
        starts: &["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"],
        follows: word,
        least: 22,
    },
    Form { what: "a GitLab token", starts: &["glpat-", "gldt-", "glrt-"], follows: word, least: 20 },
    Form {
        what: "a Slack token",
        starts: &["xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xapp-"],
        follows: word,
        least: 16,
    },
    Form {
        what: "a Stripe key",
        starts: &["sk_live_", "rk_live_", "sk_test_", "whsec_"],
        follows: alphanumeric,
        least: 16,
    },
    Form { what: "an Anthropic key", starts: &["sk-ant-"], follows: word, least: 20 },
    Form { what: "an OpenAI key", starts: &["sk-proj-", "sk-svcacct-"], follows: word, least: 20 },
    Form { what: "an API key", starts: &["sk-"], follows: alphanumeric, least: 32 },
    Form { what: "a Google API key", starts: &["AIza"], follows: word, least: 35 },
    Form { what: "an npm token", starts: &["npm_"], follows: alphanumeric, least: 36 },
    Form { what: "a PyPI token", starts: &["pypi-AgE"], follows: word, least: 40 },
    Form { what: "a Hugging Face token", starts: &["hf_"], follows: alphanumeric, least: 30 },
    Form { what: "a DigitalOcean token", starts: &["dop_v1_", "doo_v1_"], follows: alphanumeric, least: 40 },
    Form { what: "a SendGrid key", starts: &["SG."], follows: |c| word(c) || c == '.', least: 60 },
];

/// Names that secrets stand behind, in small letters and without `_` and `-`.
const NAMES: [&str; 13] = [
    "password",
    "passwd",
    "secret",
    "secretkey",
    "clientsecret",
    "apikey",
    "accesskey",
    "privatekey",
    "token",
    "authtoken",
    "accesstoken",
    "refreshtoken",
    "secretaccesskey",
];

/// Characters of a value that has a secret's form.
fn of_value(c: char) -> bool {
    c.is_ascii_alphanumeric() || "+/=_-.~".contains(c)
}

/// The first secret of a text, or else a word that looks random.
pub(crate) fn find(text: &str) -> Option<Finding> {
    if text.match_indices("-----BEGIN ").any(|(at, _)| private_key(text.get(at + 11..).unwrap_or_default())) {
        return Some(Finding::Secret("a private key"));
    }
    if url_password(text) {
        return Some(Finding::Secret("a password in a URL"));
    }
    let mut random = None;
    let mut name = String::new();
    // What stands between a word and the one before: a secret's name is followed by `=`, `:` or a space alone.
    let mut assigned = false;
    for piece in text.split_inclusive(|c| !of_value(c) || c == '=') {
        let end = piece.chars().next_back().filter(|c| !of_value(*c) || *c == '=');
        let value = end.map_or(piece, |end| piece.strip_suffix(end).unwrap_or(piece));
        if !value.is_empty() {
            if let Some(what) = form(value) {
                return Some(Finding::Secret(what));
            }
            if assigned && is_secret_name(&name) && is_random(value, 16, 3.0) {
                return Some(Finding::Secret("a secret behind a name such as `token` or `password`"));
            }
            // The parts of a path are words of their own.
            if value.split(['/', '.']).any(is_random_word) && !is_digest(&name, value) {
                random = Some(Finding::Random);
            }
            name = value.to_owned();
            assigned = false;
        }
        assigned |= matches!(end, Some('=' | ':' | ' '));
        // `--token VALUE`, `"token": "VALUE"`: quotes and spaces may stand there, too.
        if !matches!(end, None | Some('=' | ':' | ' ' | '"' | '\'')) {
            name.clear();
        }
    }
    random
}

/// Whether what follows `-----BEGIN ` is the head of a private key.
fn private_key(head: &str) -> bool {
    head.split("-----").next().is_some_and(|label| label.len() < 40 && label.ends_with("PRIVATE KEY"))
}

/// Whether somewhere stands `scheme://user:password@host`.
fn url_password(text: &str) -> bool {
    text.match_indices("://").any(|(at, _)| {
        let rest = text.get(at + 3..).unwrap_or_default();
        let authority =
            rest.split(|c: char| c == '/' || c.is_whitespace() || c == '"' || c == '\'').next().unwrap_or_default();
        let password =
            authority.rsplit_once('@').and_then(|(user, _)| user.split_once(':')).map(|(_, password)| password);
        // What a variable or a placeholder gives is none.
        password.is_some_and(|password| password.len() >= 4 && !password.starts_with(['$', '{', '<', '*']))
    })
}

/// The form that a value has, or that some part of it begins.
fn form(value: &str) -> Option<&'static str> {
    let web_token = value.split('.').map(str::len).filter(|length| *length >= 16).count() >= 3
        && value.starts_with("eyJ")
        && value.contains(".eyJ");
    if web_token {
        return Some("a JSON Web Token");
    }
    FORMS.iter().find(|form| form.starts.iter().any(|start| form.begins(value, start))).map(|form| form.what)
}

impl Form {
    fn begins(&self, value: &str, start: &str) -> bool {
        value.match_indices(start).any(|(at, _)| {
            let before = value.get(..at).and_then(|before| before.chars().next_back());
            let rest = value.get(at + start.len()..).unwrap_or_default();
            !before.is_some_and(alphanumeric) && rest.chars().take_while(|c| (self.follows)(*c)).count() >= self.least
        })
    }
}

fn is_secret_name(name: &str) -> bool {
    let plain: String = name.chars().filter(|c| c.is_ascii_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect();
    NAMES.iter().any(|secret| plain.ends_with(secret))
}

/// Whether a word is so long, has letters and digits, and at least so many bits in each character.
fn is_random(value: &str, least: usize, bits: f64) -> bool {
    let value = value.trim_end_matches('=');
    let has = |kind: fn(&char) -> bool| value.chars().any(|c| kind(&c));
    value.len() >= least && has(char::is_ascii_digit) && has(char::is_ascii_alphabetic) && entropy(value) >= bits
}

/// Whether a word that nothing is said of looks like a key: long, of every kind of character, and with much entropy.
fn is_random_word(word: &str) -> bool {
    let has = |kind: fn(&char) -> bool| word.chars().any(|c| kind(&c));
    has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase) && is_random(word, 32, 4.3)
}

/// Whether a word is a digest as lock files have them, which is no secret.
fn is_digest(name: &str, value: &str) -> bool {
    let algorithm =
        |text: &str| ["sha1", "sha256", "sha384", "sha512"].iter().any(|name| text.eq_ignore_ascii_case(name));
    algorithm(name) || value.split_once('-').is_some_and(|(head, _)| algorithm(head))
}

/// Shannon's entropy in bits for each character.
fn entropy(value: &str) -> f64 {
    let mut counts = [0_u32; 256];
    for byte in value.bytes() {
        if let Some(count) = counts.get_mut(usize::from(byte)) {
            *count += 1;
        }
    }
    let length = value.len() as f64;
    let share = |count: &u32| f64::from(*count) / length;
    counts.iter().filter(|count| **count > 0).map(|count| -share(count) * share(count).log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_by_their_form() {
        for (text, what) in [
            ("export AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE", "an AWS access key"),
            ("git clone https://x-token:ghp_0123456789abcdefghijABCDEFGHIJ456789@h", "a password in a URL"),
            ("curl -H 'Authorization: Bearer ghp_0123456789abcdefghijABCDEFGHIJ456789'", "a GitHub token"),
            ("glpat-0123456789abcdefghij", "a GitLab token"),
            ("xoxb-123456789012-abcdefghij", "a Slack token"),
            ("key=sk-ant-api03-abcdefghijklmnopqrstuvwxyz", "an Anthropic key"),
            ("-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "a private key"),
            ("-----BEGIN PRIVATE KEY-----", "a private key"),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N", "a JSON Web Token"),
            ("postgres://app:hunter22@db/x", "a password in a URL"),
        ] {
            assert_eq!(find(text), Some(Finding::Secret(what)), "{text}");
        }
    }

    #[test]
    fn secrets_are_found_by_the_name_before_them() {
        for text in [
            "api_key = \"0a1b2c3d4e5f60718293\"",
            "{\"client_secret\": \"Zm9vYmFy0123456789xyz\"}",
            "DB_PASSWORD=aB3dE6gH9jK2mN5p",
            "--token q1w2e3r4t5y6u7i8o9p0",
        ] {
            assert!(matches!(find(text), Some(Finding::Secret(_))), "{text}: {:?}", find(text));
        }
    }

    #[test]
    fn what_looks_random_is_for_a_person() {
        assert_eq!(find("x aZ3kQ9vB7nM2xC5tR8yW1pL6sD4fG0hJuIoE"), Some(Finding::Random));
    }

    #[test]
    fn what_is_no_secret_is_none() {
        for text in [
            "",
            "cargo test --workspace",
            "the token is read from the environment",
            "password=$DB_PASSWORD",
            "password: changeme",
            "postgres://app:${PASSWORD}@db/x",
            "https://example.org/a:b@c",
            "-----BEGIN CERTIFICATE-----",
            "1e8123a7f55cea9b804432a41f6f9ffe26d63b7f480",
            "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
            "550e8400-e29b-41d4-a716-446655440000",
            "/usr/lib/x86_64-linux-gnu/libexample-gobject-2.0.so.0.7200.4",
        ] {
            assert_eq!(find(text), None, "{text}");
        }
    }
}
