;; Writes 4 KiB to standard output and 4 KiB to the log, 10,000 times: 80 MB.
(component
  (import "skillhost:skill/log@0.1.0" (instance $log
    (type $level' (enum "trace" "debug" "info" "warn" "error"))
    (export "level" (type $level (eq $level')))
    (export "log" (func (param "level" $level) (param "message" string)))))
  (import "wasi:io/error@0.2.0" (instance $errors (export "error" (type (sub resource)))))
  (alias export $errors "error" (type $error))
  (import "wasi:io/streams@0.2.0" (instance $streams
    (alias outer 1 $error (type $error'))
    (export "error" (type $error (eq $error')))
    (type $failed' (variant (case "last-operation-failed" (own $error)) (case "closed")))
    (export "stream-error" (type $failed (eq $failed')))
    (export "output-stream" (type $stream (sub resource)))
    (export "[method]output-stream.blocking-write-and-flush"
      (func (param "self" (borrow $stream)) (param "contents" (list u8)) (result (result (error $failed)))))))
  (alias export $streams "output-stream" (type $stream))
  (import "wasi:cli/stdout@0.2.0" (instance $stdout
    (alias outer 1 $stream (type $stream'))
    (export "output-stream" (type $stream (eq $stream')))
    (export "get-stdout" (func (result (own $stream))))))
  (core module $memory (memory (export "memory") 1))
  (core instance $memory (instantiate $memory))
  (core func $log (canon lower (func $log "log") (memory (core memory $memory "memory"))))
  (core func $stdout (canon lower (func $stdout "get-stdout")))
  (core func $write (canon lower (func $streams "[method]output-stream.blocking-write-and-flush")
    (memory (core memory $memory "memory"))))
  (core module $guest
    (import "memory" "memory" (memory 1))
    (import "host" "log" (func $log (param i32 i32 i32)))
    (import "host" "stdout" (func $stdout (result i32)))
    (import "host" "write" (func $write (param i32 i32 i32 i32)))
    (func (export "run")
      (local $stdout i32) (local $left i32)
      (memory.fill (i32.const 0) (i32.const 0x78) (i32.const 4096))
      (local.set $stdout (call $stdout))
      (local.set $left (i32.const 10000))
      (loop $next
        (call $write (local.get $stdout) (i32.const 0) (i32.const 4096) (i32.const 8192))
        (if (i32.load8_u (i32.const 8192)) (then unreachable))
        (call $log (i32.const 2) (i32.const 0) (i32.const 4096))
        (br_if $next (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))))
  (core instance $guest (instantiate $guest
    (with "memory" (instance $memory))
    (with "host" (instance
      (export "log" (func $log)) (export "stdout" (func $stdout)) (export "write" (func $write))))))
  (func (export "run") (canon lift (core func $guest "run"))))
