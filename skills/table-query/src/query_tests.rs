//! Whole queries over real files.

use std::fs;

use tempfile::TempDir;

use crate::component::exports::skillhost::table_query::tables::*;
use crate::plan::Query;
use crate::query::{Place, run};

const PEOPLE: &str = "id,name,city,age\n1,Ada,London,36\n2,Alan,London,41\n3,Grace,New York,85\n4,Linus,,20\n";
const ORDERS: &str =
    "{\"who\":1,\"amount\":10}\n{\"who\":3,\"amount\":2.5}\n{\"who\":1,\"amount\":5}\n{\"who\":7,\"amount\":1}\n";

fn workspace() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("people.csv"), PEOPLE).unwrap();
    fs::write(directory.path().join("orders.jsonl"), ORDERS).unwrap();
    directory
}

fn people() -> Query {
    Query { files: vec!["people.csv".into()], ..Query::default() }
}

fn ask(directory: &TempDir, query: Query) -> Result<Answer, String> {
    let answer = run(Place { root: directory.path(), progress: |_| () }, query);
    let hidden = |name: &str| name.starts_with('.') || name.ends_with(".partial");
    let left = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| hidden(name)).collect::<Vec<_>>(), [""; 0], "nothing is left behind");
    answer
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn condition(column: &str, is: Test) -> Condition {
    Condition { column: column.into(), is }
}

fn order(column: &str, descending: bool) -> Order {
    Order { column: column.into(), descending }
}

fn aggregate(function: Function, column: Option<&str>) -> Aggregate {
    Aggregate { function, column: column.map(String::from), name: None }
}

fn orders(kind: Option<JoinKind>) -> Option<Join> {
    let on = vec![Pair { left: "id".into(), right: "who".into() }];
    Some(Join { file: "orders.jsonl".into(), format: None, on, kind })
}

#[test]
fn rows_as_they_are() {
    let answer = ask(&workspace(), people()).unwrap();
    assert_eq!(answer.columns, ["id", "name", "city", "age"]);
    assert_eq!(answer.rows[3], ["4", "Linus", "", "20"]);
    assert_eq!((answer.row_count, answer.rows_read, answer.truncated), (4, 4, false));
}

#[test]
fn filtered_ordered_selected_and_limited() {
    let query = Query {
        conditions: vec![condition("age", Test::AtLeast("30".into()))],
        order_by: vec![order("age", true)],
        select: Some(texts(&["name"])),
        limit: Some(2),
        ..people()
    };
    let answer = ask(&workspace(), query).unwrap();
    assert_eq!(answer.rows, [["Grace"], ["Alan"]]);
    assert_eq!((answer.row_count, answer.truncated), (3, true));
}

#[test]
fn grouped_with_a_condition_on_groups() {
    let query = Query {
        group_by: texts(&["city"]),
        aggregates: vec![aggregate(Function::Count, None), aggregate(Function::Mean, Some("age"))],
        having: vec![condition("count", Test::Greater("1".into()))],
        ..people()
    };
    let answer = ask(&workspace(), query).unwrap();
    assert_eq!(answer.columns, ["city", "count", "mean(age)"]);
    assert_eq!(answer.rows, [["London", "2", "38.5"]]);
}

#[test]
fn joined_across_formats() {
    let query = Query {
        join: orders(None),
        conditions: vec![condition("amount", Test::Greater("3".into()))],
        group_by: texts(&["name"]),
        aggregates: vec![aggregate(Function::Sum, Some("amount"))],
        ..people()
    };
    assert_eq!(ask(&workspace(), query).unwrap().rows, [["Ada", "15"]]);

    let query = Query {
        join: orders(Some(JoinKind::Left)),
        conditions: vec![condition("amount", Test::Empty)],
        select: Some(texts(&["name", "right.amount"])),
        ..people()
    };
    assert_eq!(ask(&workspace(), query).unwrap().rows, [["Alan", ""], ["Linus", ""]]);
}

#[test]
fn a_table_beside_itself() {
    let on = vec![Pair { left: "city".into(), right: "city".into() }];
    let join = Some(Join { file: "people.csv".into(), format: None, on, kind: None });
    let query = Query { join, conditions: vec![condition("id", Test::Less("2".into()))], ..people() };
    let answer = ask(&workspace(), query).unwrap();
    assert_eq!(answer.columns[3..6], ["age", "right.id", "right.name"]);
    assert_eq!(answer.rows.iter().map(|row| row[5].as_str()).collect::<Vec<_>>(), ["Ada", "Alan"]);
}

#[test]
fn several_files_are_one_table_by_name() {
    let directory = workspace();
    fs::write(directory.path().join("more.csv"), "age,name,team\n50,Barbara,x\n").unwrap();
    let query = Query {
        files: texts(&["people.csv", "more.csv"]),
        conditions: vec![condition("age", Test::Greater("40".into()))],
        ..people()
    };
    let answer = ask(&directory, query).unwrap();
    assert_eq!(answer.columns, ["id", "name", "city", "age", "team"]);
    assert_eq!(answer.rows.last().unwrap(), &["", "Barbara", "", "50", "x"]);
}

#[test]
fn results_can_go_to_files_of_either_kind() {
    let directory = workspace();
    let to = |output: &str| Query { output: Some(output.into()), join: orders(None), ..people() };
    let written = ask(&directory, to("out/all.jsonl")).unwrap();
    assert_eq!((written.rows.len(), written.row_count, written.truncated), (0, 3, false));
    let text = fs::read_to_string(directory.path().join("out/all.jsonl")).unwrap();
    assert_eq!(written.output.unwrap().bytes, text.len() as u64);
    let first = text.lines().next().unwrap();
    assert_eq!(first, r#"{"id":"1","name":"Ada","city":"London","age":"36","who":1,"amount":10}"#);
    ask(&directory, to("all.csv")).unwrap();
    let text = fs::read_to_string(directory.path().join("all.csv")).unwrap();
    assert_eq!(text.lines().last(), Some("3,Grace,New York,85,3,2.5"));
}

#[test]
fn a_file_can_replace_the_one_it_is_made_from() {
    let directory = workspace();
    let query = Query { output: Some("people.csv".into()), order_by: vec![order("age", false)], ..people() };
    ask(&directory, query).unwrap();
    let names = ask(&directory, Query { select: Some(texts(&["name"])), ..people() }).unwrap().rows;
    assert_eq!(names, [["Linus"], ["Ada"], ["Alan"], ["Grace"]]);
}

#[test]
fn long_cells_end_the_answer_and_it_says_so() {
    let directory = workspace();
    let long = format!("x\n{}\n", "y".repeat(100_000)).repeat(1) + &format!("{}\n", "y".repeat(100_000)).repeat(4);
    fs::write(directory.path().join("long.csv"), long).unwrap();
    let answer = ask(&directory, Query { files: texts(&["long.csv"]), ..Query::default() }).unwrap();
    assert_eq!((answer.rows.len(), answer.row_count, answer.truncated), (2, 5, true));
}

#[test]
fn what_is_wrong_with_a_query_is_said() {
    let directory = workspace();
    let wrong = |query: Query| ask(&directory, query).err().unwrap();
    let error = wrong(Query { select: Some(texts(&["agee"])), ..people() });
    assert_eq!(error, "people.csv has no column `agee`; it has: id, name, city, age");
    let error = wrong(Query { limit: Some(1001), ..people() });
    assert!(error.contains("at most 1000") && error.contains("`output`"), "{error}");
    let error = wrong(Query { aggregates: vec![aggregate(Function::Sum, None)], ..people() });
    assert_eq!(error, "`sum` needs a column");
    let count = || aggregate(Function::Count, None);
    let error = wrong(Query { aggregates: vec![count(), count()], ..people() });
    assert!(error.contains("two columns of the result are called `count`"), "{error}");
    let error = wrong(Query { aggregates: vec![count()], order_by: vec![order("age", true)], ..people() });
    assert_eq!(error, "the result has no column `age`; it has: count");
    let error = wrong(Query { having: vec![condition("age", Test::Present)], ..people() });
    assert!(error.contains("use `where`"), "{error}");
    let error = wrong(Query { files: texts(&["none.csv"]), ..Query::default() });
    assert!(error.starts_with("`none.csv` cannot be read: "), "{error}");
    let error = wrong(Query { files: texts(&["a.xls"]), ..Query::default() });
    assert!(error.contains("give `format`"), "{error}");
    let error = wrong(Query { output: Some("a.xls".into()), ..people() });
    assert!(error.contains("should end in .csv"), "{error}");
    let error = wrong(Query { join: orders(None), select: Some(texts(&["x"])), ..people() });
    assert!(
        error.contains("people.csv has no column `x`") && error.contains("orders.jsonl has no column `x`"),
        "{error}"
    );
}

#[test]
fn a_description_says_what_is_in_each_column() {
    let directory = workspace();
    let place = Place { root: directory.path(), progress: |_| () };
    let found = crate::describe::describe(place, "people.csv".into(), None).unwrap();
    assert_eq!((found.rows, found.bytes), (4, PEOPLE.len() as u64));
    let age = &found.columns[3];
    assert_eq!((age.filled, age.numbers, age.least.as_str(), age.greatest.as_str()), (4, 4, "20", "85"));
    let city = &found.columns[2];
    assert_eq!(
        (city.filled, city.numbers, city.example.as_str(), city.greatest.as_str()),
        (3, 0, "London", "New York")
    );
}
