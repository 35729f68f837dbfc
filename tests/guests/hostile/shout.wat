;; Gives the log one string of 2 MiB, of which it has the memory.
(component
  (import "skillhost:skill/log@0.1.0" (instance $log
    (type $level' (enum "trace" "debug" "info" "warn" "error"))
    (export "level" (type $level (eq $level')))
    (export "log" (func (param "level" $level) (param "message" string)))))
  (core module $memory (memory (export "memory") 64))
  (core instance $memory (instantiate $memory))
  (core func $log (canon lower (func $log "log") (memory (core memory $memory "memory"))))
  (core module $guest
    (import "host" "log" (func $log (param i32 i32 i32)))
    (func (export "run") (call $log (i32.const 2) (i32.const 0) (i32.const 0x200000))))
  (core instance $guest (instantiate $guest (with "host" (instance (export "log" (func $log))))))
  (func (export "run") (canon lift (core func $guest "run"))))
