;; Has as many memories and tables as may be asked for, and waits for an hour.
(component
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $pollable (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $pollable))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock
    (alias outer 1 $pollable (type $pollable'))
    (export "pollable" (type $pollable (eq $pollable')))
    (export "subscribe-duration" (func (param "when" u64) (result (own $pollable))))))
  (core func $subscribe (canon lower (func $clock "subscribe-duration")))
  (core func $block (canon lower (func $poll "[method]pollable.block")))
  (core module $guest
    (import "host" "subscribe" (func $subscribe (param i64) (result i32)))
    (import "host" "block" (func $block (param i32)))
    (memory 1) (memory 1) (memory 1) (memory 1) (memory 1) (memory 1) (memory 1) (memory 1)
    (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref)
    (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref)
    (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref)
    (table 1 funcref) (table 1 funcref) (table 1 funcref) (table 1 funcref)
    (func (export "run") (call $block (call $subscribe (i64.const 3600000000000)))))
  (core instance $guest (instantiate $guest
    (with "host" (instance (export "subscribe" (func $subscribe)) (export "block" (func $block))))))
  (func (export "run") (canon lift (core func $guest "run"))))
