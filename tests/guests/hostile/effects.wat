;; Reads the blackboard until it is told that this is enough (the second case of `error`), then 100 times more. Returns
;; how often it was answered.
(component
  (import "skillhost:skill/types@0.1.0" (instance $types
    (type $conflict' (record (field "version" u64) (field "message" string)))
    (export "conflict" (type $conflict (eq $conflict')))
    (type $error (variant
      (case "denied" string) (case "quota-exceeded" string) (case "permission" string) (case "invalid-argument" string)
      (case "not-found" string) (case "already-exists" string) (case "conflict" $conflict)
      (case "not-owner" string) (case "timed-out" string)
      (case "cancelled" string) (case "too-large" string) (case "sandbox-died" string) (case "unavailable" string)
      (case "other" string)))
    (export "error" (type (eq $error)))))
  (alias export $types "error" (type $error))
  (import "skillhost:skill/blackboard@0.1.0" (instance $board
    (alias outer 1 $error (type $error'))
    (export "error" (type $error (eq $error')))
    (type $entry' (record
      (field "key" string) (field "value" string) (field "version" u64) (field "created-at-ms" u64)
      (field "updated-at-ms" u64) (field "created-by" string) (field "updated-by" string)
      (field "expires-at-ms" (option u64)) (field "tags" (list string)) (field "metadata" string)))
    (export "entry" (type $entry (eq $entry')))
    (export "get" (func (param "key" string) (result (result (option $entry) (error $error)))))))
  (core module $memory
    (memory (export "memory") 32)
    ;; Never frees: what the host hands over is overwritten by the next.
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 0x100000)))
  (core instance $memory (instantiate $memory))
  (core func $get (canon lower (func $board "get")
    (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (core module $guest
    (import "memory" "memory" (memory 0))
    (import "host" "get" (func $get (param i32 i32 i32)))
    (data (i32.const 0) "key")
    ;; Whether it was answered; anything but an answer or `quota-exceeded` ends this.
    (func $asked (result i32)
      (call $get (i32.const 0) (i32.const 3) (i32.const 64))
      (if (i32.eqz (i32.load8_u (i32.const 64))) (then (return (i32.const 1))))
      (if (i32.ne (i32.load8_u (i32.const 72)) (i32.const 1)) (then unreachable))
      (i32.const 0))
    (func (export "run") (result i32)
      (local $answered i32) (local $left i32)
      (loop $next
        (if (call $asked) (then
          (local.set $answered (i32.add (local.get $answered) (i32.const 1)))
          (br $next))))
      (local.set $left (i32.const 100))
      (loop $next
        (if (call $asked) (then unreachable))
        (br_if $next (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
      (local.get $answered)))
  (core instance $guest (instantiate $guest
    (with "memory" (instance $memory)) (with "host" (instance (export "get" (func $get))))))
  (func (export "run") (result u32) (canon lift (core func $guest "run"))))
