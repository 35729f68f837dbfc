//! Bytes in JSON: a string where they are UTF-8, otherwise base64 with `<field>_encoding` beside it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize as _, Deserializer, Serializer};
use serde_json::{Map, Value};

fn serialize<S: Serializer>(
    field: &'static str,
    encoding: &'static str,
    bytes: &[u8],
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(None)?;
    match std::str::from_utf8(bytes) {
        Ok(text) => map.serialize_entry(field, text)?,
        Err(_) => {
            map.serialize_entry(field, &STANDARD.encode(bytes))?;
            map.serialize_entry(encoding, "base64")?;
        }
    }
    map.end()
}

fn deserialize<'de, D: Deserializer<'de>>(field: &str, encoding: &str, from: D) -> Result<Vec<u8>, D::Error> {
    // `flatten` hands over every field that the struct did not name itself.
    let fields = Map::<String, Value>::deserialize(from)?;
    let text = fields
        .get(field)
        .and_then(Value::as_str)
        .ok_or_else(|| D::Error::custom(format!("missing field `{field}`")))?;
    match fields.get(encoding).and_then(Value::as_str) {
        None => Ok(text.as_bytes().to_vec()),
        Some("base64") => STANDARD.decode(text).map_err(D::Error::custom),
        Some(other) => Err(D::Error::custom(format!("unknown {encoding} `{other}`"))),
    }
}

macro_rules! stream {
    ($name:ident, $encoding:ident) => {
        pub(crate) mod $name {
            /// The fields that stand for it.
            #[cfg(feature = "schema")]
            #[cfg(feature = "schema")]
            #[derive(schemars::JsonSchema)]
            #[allow(dead_code, reason = "only described")]
            pub(crate) struct Text {
                $name: String,
                /// `base64` where the bytes are no UTF-8.
                #[serde(default)]
                $encoding: Option<String>,
            }
            pub(crate) fn serialize<S: serde::Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
                super::serialize(stringify!($name), stringify!($encoding), bytes, to)
            }
            pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
                super::deserialize(stringify!($name), stringify!($encoding), from)
            }
        }
    };
}

stream!(name, name_encoding);
stream!(stdout, stdout_encoding);
stream!(stderr, stderr_encoding);

#[cfg(test)]
mod tests {
    use crate::types::{ExecAnswer, Outcome};

    #[test]
    fn bytes_that_are_not_utf8_travel_as_base64() {
        let answer = ExecAnswer {
            container_id: "c".into(),
            exec_id: "e".into(),
            command: vec![],
            exit_code: 0,
            outcome: Outcome::Exited(0),
            stdout: vec![0xff, 0],
            stderr: b"plain".to_vec(),
            stdout_bytes: 2,
            stderr_bytes: 5,
            truncated: false,
            timed_out: false,
            wall_time_ms: 1,
            cwd: "/workspace".into(),
            stream_key: None,
            message: String::new(),
        };
        let json = serde_json::to_value(&answer).unwrap();
        assert_eq!(json["stdout"], "/wA=");
        assert_eq!(json["stdout_encoding"], "base64");
        assert_eq!(json["stderr"], "plain");
        assert!(json.get("stderr_encoding").is_none());
        let back: ExecAnswer = serde_json::from_value(json).unwrap();
        assert_eq!((back.stdout, back.stderr), (answer.stdout, answer.stderr));
    }
}
