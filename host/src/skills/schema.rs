//! JSON Schema (2020-12) of arguments and results.
//!
//! What [`super::lower`] accepts is what these schemas accept, and nothing else (bounds on size aside): a model that
//! follows the schema is never refused, and one that does not is told by either. `anyOf` and never `oneOf`, and neither
//! at the top, for some readers of schemas cope with no more.

use serde_json::{Map, Value, json};

use super::descriptor::Param;
use super::ty::{Int, MAX_BYTES, ResultTy, Ty};

/// Base64 as [`super::lower`] reads it: the standard alphabet, padded, and no stray bits in the last character.
const BASE64: &str = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)?$";
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// 2^128 − 2^103: the least number that no longer rounds to a finite f32.
pub(super) const F32_BOUND: f64 = 3.402_823_567_797_336_6e38;

/// The names that stand for the floats JSON has no number for.
pub(super) const NOT_NUMBERS: [(&str, f64); 3] =
    [("NaN", f64::NAN), ("Infinity", f64::INFINITY), ("-Infinity", f64::NEG_INFINITY)];

/// The schema of an action's arguments: an object.
pub fn input(params: &[Param]) -> Value {
    let mut defs = Defs::default();
    let fields = params.iter().map(|param| (param.name.as_str(), param.docs.as_str(), &param.ty));
    let schema = object(fields, &mut defs);
    document(schema, defs)
}

/// The schema of an action's result; of its `ok`, when it is a `result`.
pub fn output(result: Option<&Ty>) -> Option<Value> {
    let ty = match result? {
        Ty::Result(ResultTy { ok, .. }) => ok.as_deref()?,
        ty => ty,
    };
    let mut defs = Defs::default();
    let schema = of(ty, &mut defs);
    Some(document(schema, defs))
}

/// What is long and may stand in many places.
#[derive(Default)]
struct Defs(Map<String, Value>);

fn document(schema: Value, defs: Defs) -> Value {
    let mut whole = Map::from_iter([("$schema".to_owned(), DIALECT.into())]);
    if let Value::Object(schema) = schema {
        whole.extend(schema);
    }
    if !defs.0.is_empty() {
        whole.insert("$defs".into(), defs.0.into());
    }
    whole.into()
}

fn of(ty: &Ty, defs: &mut Defs) -> Value {
    match ty {
        Ty::Bool => json!({"type": "boolean"}),
        Ty::Int(int) if int.is_wide() => {
            defs.0.entry(int.name()).or_insert_with(|| wide(*int));
            json!({"$ref": format!("#/$defs/{}", int.name())})
        }
        Ty::Int(int) => integer(*int),
        Ty::F32 => float(json!({"type": "number", "exclusiveMinimum": -F32_BOUND, "exclusiveMaximum": F32_BOUND})),
        Ty::F64 => float(json!({"type": "number"})),
        Ty::Char => json!({"type": "string", "minLength": 1, "maxLength": 1}),
        Ty::String => json!({"type": "string"}),
        Ty::Bytes => json!({
            "type": "string",
            "contentEncoding": "base64",
            "pattern": BASE64,
            "maxLength": MAX_BYTES.div_ceil(3) * 4,
        }),
        Ty::List(item) => json!({"type": "array", "items": of(item, defs)}),
        Ty::Tuple(items) => {
            let schemas: Vec<_> = items.iter().map(|item| of(item, defs)).collect();
            json!({
                "type": "array",
                "prefixItems": schemas,
                "items": false,
                "minItems": items.len(),
                "maxItems": items.len(),
            })
        }
        Ty::Record(record) => {
            let fields = record.fields.iter().map(|field| (field.name.as_str(), field.docs.as_str(), &field.ty));
            described(object(fields, defs), &record.docs)
        }
        Ty::Enum(labels) => {
            let names: Vec<_> = labels.labels.iter().map(|label| label.name.as_str()).collect();
            let docs = with_members(&labels.docs, labels.labels.iter().map(|label| (&label.name, &label.docs)));
            described(json!({"type": "string", "enum": names}), &docs)
        }
        Ty::Flags(labels) => {
            let names: Vec<_> = labels.labels.iter().map(|label| label.name.as_str()).collect();
            let docs = with_members(&labels.docs, labels.labels.iter().map(|label| (&label.name, &label.docs)));
            let items = json!({"type": "string", "enum": names});
            described(json!({"type": "array", "items": items, "uniqueItems": true}), &docs)
        }
        Ty::Variant(variant) => {
            let cases: Vec<_> = variant
                .cases
                .iter()
                .map(|case| {
                    let mut properties = Map::from_iter([("tag".to_owned(), json!({"const": case.name}))]);
                    let mut required = vec!["tag"];
                    if let Some(ty) = &case.ty {
                        properties.insert("val".into(), of(ty, defs));
                        required.push("val");
                    }
                    described(closed(properties, &required), &case.docs)
                })
                .collect();
            described(json!({"anyOf": cases}), &variant.docs)
        }
        Ty::Option(inner) => {
            let some = match &**inner {
                Ty::Option(_) => closed(Map::from_iter([("some".to_owned(), of(inner, defs))]), &["some"]),
                inner => of(inner, defs),
            };
            json!({"anyOf": [some, {"type": "null"}]})
        }
        Ty::Result(ResultTy { ok, err }) => {
            let mut side = |name: &str, ty: &Option<Box<Ty>>| {
                let schema = ty.as_ref().map_or_else(|| json!({"type": "null"}), |ty| of(ty, defs));
                closed(Map::from_iter([(name.to_owned(), schema)]), &[name])
            };
            json!({"anyOf": [side("ok", ok), side("err", err)]})
        }
    }
}

fn object<'a>(fields: impl Iterator<Item = (&'a str, &'a str, &'a Ty)>, defs: &mut Defs) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, docs, ty) in fields {
        properties.insert(name.to_owned(), described(of(ty, defs), docs));
        if !ty.is_optional() {
            required.push(name);
        }
    }
    closed(properties, &required)
}

fn closed(properties: Map<String, Value>, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// `schema` with a description; one that is nearer to the use comes before the type's own.
fn described(mut schema: Value, docs: &str) -> Value {
    if let (false, Value::Object(map)) = (docs.is_empty(), &mut schema) {
        map.insert("description".into(), docs.into());
    }
    schema
}

fn with_members<'a>(docs: &str, members: impl Iterator<Item = (&'a String, &'a String)>) -> String {
    let mut text = docs.to_owned();
    for (name, docs) in members.filter(|(_, docs)| !docs.is_empty()) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&format!("- {name}: {docs}"));
    }
    text
}

fn float(number: Value) -> Value {
    json!({"anyOf": [number, {"enum": NOT_NUMBERS.map(|(name, _)| name)}]})
}

fn integer(int: Int) -> Value {
    let (min, max) = int.range();
    // Every bound fits one of the two; `json!` has no 128-bit integers.
    let number = |value: i128| i64::try_from(value).map_or_else(|_| json!(u64::MAX), Value::from);
    json!({"type": "integer", "minimum": number(min), "maximum": number(max)})
}

/// A 64-bit integer: beyond ±2^53 many readers of JSON lose digits, so that a decimal string does as well.
fn wide(int: Int) -> Value {
    let (min, max) = int.range();
    let up_to = up_to(&max.to_string());
    let pattern = if min < 0 {
        format!("^(?:0|{up_to}|-{})$", self::up_to(&min.unsigned_abs().to_string()))
    } else {
        format!("^(?:0|{up_to})$")
    };
    json!({"anyOf": [integer(int), {"type": "string", "pattern": pattern}]})
}

/// A pattern for the whole numbers from 1 to `max`, which has no leading zero.
fn up_to(max: &str) -> String {
    let digits = max.len();
    let mut pattern = format!("(?:[1-9][0-9]{{0,{}}}", digits.saturating_sub(2));
    let mut prefix = String::new();
    for (index, digit) in max.chars().enumerate() {
        let least = if index == 0 { '1' } else { '0' };
        let left = digits - index - 1;
        if digit > least {
            let below = char::from_digit(digit.to_digit(10).unwrap_or(0).saturating_sub(1), 10).unwrap_or('0');
            pattern.push_str(&format!("|{prefix}[{least}-{below}][0-9]{{{left}}}"));
        }
        prefix.push(digit);
    }
    pattern.push_str(&format!("|{max})"));
    pattern
}
