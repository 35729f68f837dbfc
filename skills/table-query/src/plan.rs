//! What a query asks for, checked: every column that it names is there, and has a place in a row.

use crate::component::exports::skillhost::table_query::tables as wit;
use crate::condition::Condition;
use crate::group::Aggregate;
use crate::source::Table;

/// A query as it is asked.
#[derive(Default)]
pub(crate) struct Query {
    pub(crate) files: Vec<String>,
    pub(crate) format: Option<wit::Format>,
    pub(crate) join: Option<wit::Join>,
    pub(crate) conditions: Vec<wit::Condition>,
    pub(crate) group_by: Vec<String>,
    pub(crate) aggregates: Vec<wit::Aggregate>,
    pub(crate) having: Vec<wit::Condition>,
    pub(crate) select: Option<Vec<String>>,
    pub(crate) order_by: Vec<wit::Order>,
    pub(crate) limit: Option<u64>,
    pub(crate) output: Option<String>,
}

/// The tables of a query, and which of their columns it needs.
pub(crate) struct Input<'a> {
    pub(crate) left: &'a Table,
    pub(crate) right: Option<&'a Table>,
    /// The columns that are read of each, and what the query calls those of both.
    pub(crate) left_wanted: Vec<String>,
    pub(crate) right_wanted: Vec<String>,
}

/// Which table a column is in.
#[derive(Clone, Copy, PartialEq)]
enum In {
    Left,
    Right,
}

/// What the second table's columns can be called by.
const RIGHT: &str = "right.";

impl<'a> Input<'a> {
    pub(crate) fn new(left: &'a Table, right: Option<&'a Table>) -> Self {
        Self { left, right, left_wanted: Vec::new(), right_wanted: Vec::new() }
    }

    /// The names of all columns.
    pub(crate) fn all(&self) -> Vec<String> {
        let right = self.right.map_or(&[][..], |table| &table.columns);
        let right =
            right.iter().map(|column| if self.left.has(column) { format!("{RIGHT}{column}") } else { column.clone() });
        self.left.columns.iter().cloned().chain(right).collect()
    }

    fn find<'c>(&self, column: &'c str) -> Result<(In, &'c str), String> {
        if self.left.has(column) {
            return Ok((In::Left, column));
        }
        let Some(right) = self.right else { return Err(self.left.lacks(column)) };
        match column.strip_prefix(RIGHT) {
            Some(name) if right.has(name) => Ok((In::Right, name)),
            _ if right.has(column) => Ok((In::Right, column)),
            _ => Err(format!("{}; {}", self.left.lacks(column), right.lacks(column))),
        }
    }

    /// Has a column read.
    pub(crate) fn want(&mut self, column: &str) -> Result<(), String> {
        let (side, name) = self.find(column)?;
        let wanted = if side == In::Left { &mut self.left_wanted } else { &mut self.right_wanted };
        if !wanted.iter().any(|known| known == name) {
            wanted.push(name.to_owned());
        }
        Ok(())
    }

    /// Has a column of the second table read, and gives its place in that table's rows.
    pub(crate) fn want_right(&mut self, column: &str) -> Result<usize, String> {
        let right = self.right.ok_or("there is no second table")?;
        if !right.has(column) {
            return Err(right.lacks(column));
        }
        place(&self.right_wanted, column).or_else(|_| {
            self.right_wanted.push(column.to_owned());
            Ok(self.right_wanted.len() - 1)
        })
    }

    /// The place of a column that is read in a row of both tables; only when all columns are known that are read.
    pub(crate) fn place(&self, column: &str) -> Result<usize, String> {
        Ok(match self.find(column)? {
            (In::Left, name) => place(&self.left_wanted, name)?,
            (In::Right, name) => self.left_wanted.len() + place(&self.right_wanted, name)?,
        })
    }
}

/// The place of a name among names.
pub(crate) fn place(names: &[String], name: &str) -> Result<usize, String> {
    names
        .iter()
        .position(|known| known == name)
        .ok_or_else(|| format!("the result has no column `{name}`; it has: {}", names.join(", ")))
}

/// Conditions in three parts: those of a left row alone, those of a right row alone, and those of the pair.
#[derive(Default)]
pub(crate) struct Conditions {
    pub(crate) left: Vec<Condition>,
    pub(crate) right: Vec<Condition>,
    pub(crate) both: Vec<Condition>,
}

impl Conditions {
    /// A condition on the right row can be asked before the join, unless rows without a partner are kept: it is then
    /// asked of their empty cells, too.
    pub(crate) fn new(input: &Input<'_>, asked: Vec<wit::Condition>, keep_left: bool) -> Result<Self, String> {
        let mut conditions = Self::default();
        for wit::Condition { column, is } in asked {
            let at = input.place(&column)?;
            match at.checked_sub(input.left_wanted.len()) {
                None => conditions.left.push(Condition::new(at, is)),
                Some(_) if keep_left => conditions.both.push(Condition::new(at, is)),
                Some(at) => conditions.right.push(Condition::new(at, is)),
            }
        }
        Ok(conditions)
    }
}

/// What an aggregate's column is called.
pub(crate) fn called(aggregate: &wit::Aggregate) -> Result<String, String> {
    let function = match aggregate.function {
        wit::Function::Count => "count",
        wit::Function::Sum => "sum",
        wit::Function::Mean => "mean",
        wit::Function::Least => "least",
        wit::Function::Greatest => "greatest",
    };
    match (&aggregate.name, &aggregate.column) {
        (_, None) if aggregate.function != wit::Function::Count => Err(format!("`{function}` needs a column")),
        (Some(name), _) => Ok(name.clone()),
        (None, Some(column)) => Ok(format!("{function}({column})")),
        (None, None) => Ok(function.to_owned()),
    }
}

/// What to work out, and of which place.
pub(crate) fn aggregates(input: &Input<'_>, asked: &[wit::Aggregate]) -> Result<Vec<Aggregate>, String> {
    let place = |aggregate: &wit::Aggregate| {
        let at = aggregate.column.as_deref().map(|column| input.place(column)).transpose()?;
        Ok((aggregate.function, at))
    };
    asked.iter().map(place).collect()
}
