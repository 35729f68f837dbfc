;; Hands the host 50,000 pairs of strings that are all the same 64 KiB, as the environment of a container.
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
  (import "skillhost:skill/sandbox@0.1.0" (instance $sandbox
    (alias outer 1 $error (type $error'))
    (export "error" (type $error (eq $error')))
    (type $network' (enum "none" "bridge"))
    (export "network" (type $network (eq $network')))
    (type $options' (record
      (field "role" string) (field "cpus" (option f64)) (field "memory-mib" (option u64)) (field "network" (option $network))
      (field "wall-time-ms" (option u64)) (field "shared" bool) (field "env" (list (tuple string string)))))
    (export "launch-options" (type $options (eq $options')))
    (export "container" (type $container (sub resource)))
    (export "[static]container.launch"
      (func (param "options" $options) (result (result (own $container) (error $error)))))))
  (core module $memory
    (memory (export "memory") 32)
    ;; Never frees: what the host hands over is overwritten by the next.
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 0x100000)))
  (core instance $memory (instantiate $memory))
  (core func $launch (canon lower (func $sandbox "[static]container.launch")
    (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (core module $guest
    (import "memory" "memory" (memory 0))
    (import "host" "launch"
      (func $launch (param i32 i32 i32 f64 i32 i64 i32 i32 i32 i64 i32 i32 i32 i32)))
    (func (export "run")
      (local $at i32)
      (local.set $at (i32.const 0x10000))
      (loop $next
        (i32.store (local.get $at) (i32.const 0))
        (i32.store offset=4 (local.get $at) (i32.const 0x10000))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (br_if $next (i32.lt_u (local.get $at) (i32.const 865536))))
      (call $launch
        (i32.const 0) (i32.const 0) (i32.const 0) (f64.const 0) (i32.const 0) (i64.const 0) (i32.const 0) (i32.const 0)
        (i32.const 0) (i64.const 0) (i32.const 0) (i32.const 0x10000) (i32.const 50000) (i32.const 0x1f0000))))
  (core instance $guest (instantiate $guest
    (with "memory" (instance $memory)) (with "host" (instance (export "launch" (func $launch))))))
  (func (export "run") (canon lift (core func $guest "run"))))
