//! Cuts what git writes with `-z` into fields, wherever the pieces of the stream end.

/// Longer than any path or subject that is of use.
const FIELD_AT_MOST: usize = 64 * 1024;

/// A stream of fields that end in NUL.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    begun: Vec<u8>,
}

impl Fields {
    /// Gives each field that `bytes` completes to `each`.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        each: &mut dyn FnMut(&str) -> Result<(), String>,
    ) -> Result<(), String> {
        for piece in bytes.split_inclusive(|&byte| byte == 0) {
            if self.begun.len() + piece.len() > FIELD_AT_MOST {
                return Err(format!("git wrote a field of more than {FIELD_AT_MOST} bytes"));
            }
            self.begun.extend_from_slice(piece);
            if let Some(field) = self.begun.strip_suffix(b"\0") {
                each(&String::from_utf8_lossy(field))?;
                self.begun.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Fields;

    #[test]
    fn fields_survive_any_cut() {
        let stream = b"one\0\0a\nb\0rest";
        for size in 1..=stream.len() {
            let (mut fields, mut seen) = (Fields::default(), Vec::new());
            for piece in stream.chunks(size) {
                let mut each = |field: &str| {
                    seen.push(field.to_owned());
                    Ok(())
                };
                fields.push(piece, &mut each).unwrap();
            }
            assert_eq!(seen, ["one", "", "a\nb"], "{size}");
        }
    }

    #[test]
    fn a_field_without_an_end_is_refused() {
        let mut fields = Fields::default();
        let refused = (0..100).find_map(|_| fields.push(&[b'x'; 4096], &mut |_| Ok(())).err());
        assert!(refused.unwrap().contains("more than 65536 bytes"));
    }
}
