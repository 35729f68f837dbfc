//! Lines added and removed in each file, from `--numstat -z`: `added TAB removed TAB path NUL`, and for a rename an empty
//! path with the old and the new one as fields of their own. Binary files have `-` for both counts.

/// What changed in one file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Count {
    pub(crate) path: String,
    pub(crate) binary: bool,
    pub(crate) added: u64,
    pub(crate) removed: u64,
}

/// Reads it field by field.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// A rename whose paths have not come, and how many of them have.
    rename: Option<(Count, u8)>,
}

impl Counts {
    /// Whether a new file would begin with the next field.
    pub(crate) fn is_between(&self) -> bool {
        self.rename.is_none()
    }

    /// Takes a field; gives what it completes.
    pub(crate) fn field(&mut self, field: &str) -> Result<Option<Count>, String> {
        match self.rename.take() {
            Some((count, 0)) => {
                self.rename = Some((count, 1));
                Ok(None)
            }
            Some((count, _)) => Ok(Some(Count { path: field.to_owned(), ..count })),
            None => {
                let count = parse(field).ok_or_else(|| {
                    format!("git wrote what is no count of lines: {:?}", field.chars().take(200).collect::<String>())
                })?;
                if count.path.is_empty() {
                    self.rename = Some((count, 0));
                    return Ok(None);
                }
                Ok(Some(count))
            }
        }
    }
}

fn parse(field: &str) -> Option<Count> {
    let mut parts = field.splitn(3, '\t');
    let (added, removed, path) = (parts.next()?, parts.next()?, parts.next()?);
    let path = path.to_owned();
    if (added, removed) == ("-", "-") {
        return Some(Count { path, binary: true, added: 0, removed: 0 });
    }
    Some(Count { path, binary: false, added: added.parse().ok()?, removed: removed.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_files_and_of_renames() {
        let mut counts = Counts::default();
        let mut of = |field: &str| counts.field(field).unwrap().map(|it| (it.path, it.binary, it.added, it.removed));
        assert_eq!(of("3\t1\ta\tb\nc"), Some(("a\tb\nc".into(), false, 3, 1)));
        assert_eq!(of("-\t-\tx.png"), Some(("x.png".into(), true, 0, 0)));
        assert_eq!((of("1\t0\t"), of("7\t7\told"), of("new")), (None, None, Some(("new".into(), false, 1, 0))));
        assert_eq!(of("0\t0\tempty"), Some(("empty".into(), false, 0, 0)));
    }

    #[test]
    fn what_is_no_count_is_refused() {
        for field in ["", "1\t2", "1\t-\ta", "x\t1\ta", "-1\t1\ta"] {
            assert!(Counts::default().field(field).unwrap_err().contains("no count of lines"), "{field:?}");
        }
    }
}
