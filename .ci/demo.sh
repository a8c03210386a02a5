# Starting and stopping a server from a script, and ./dev demo. Sourced by ./dev.

# start_server NAME [OPTION...]: serves the embedded default model on free ports and waits until it is ready, which means
# that it has produced a token. Sets server_pid, http_port, grpc_port, server_log.
start_server() {
  local name=$1
  shift
  server_log=build/$name.log
  : >"$server_log"
  build/release/bin/oar serve demo --http 127.0.0.1:0 --grpc 127.0.0.1:0 "$@" >"$server_log" 2>&1 &
  server_pid=$!
  trap '[ -z "$server_pid" ] || kill "$server_pid" 2>/dev/null || true' EXIT
  http_port= grpc_port=
  local tries
  for tries in $(seq 1 600); do
    if ! kill -0 "$server_pid" 2>/dev/null; then
      echo "dev: oar serve ended early; its log ($server_log):" >&2
      tail -20 "$server_log" >&2
      return 1
    fi
    http_port=$(sed -nE 's/.*http[^0-9]*127\.0\.0\.1:([0-9]+).*/\1/Ip' "$server_log" | head -1)
    grpc_port=$(sed -nE 's/.*grpc[^0-9]*127\.0\.0\.1:([0-9]+).*/\1/Ip' "$server_log" | head -1)
    if [ -n "$http_port" ] && [ -n "$grpc_port" ] && python3 clients/python/stream_http.py --ready \
      --url "http://127.0.0.1:$http_port" 2>/dev/null; then
      return 0
    fi
    sleep 0.1
  done
  echo "dev: oar serve did not become ready within 60 s; its log ($server_log):" >&2
  tail -20 "$server_log" >&2
  stop_server || true
  return 1
}

# Asks the server to end (SIGTERM: requests in flight finish) and returns its exit status.
stop_server() {
  local status=0
  kill -TERM "$server_pid" 2>/dev/null || true
  wait "$server_pid" || status=$?
  server_pid=
  return "$status"
}

demo() {
  local keep= memory status=0
  case "${1:-}" in
    --keep) keep=yes ;;
    '') ;;
    *) fail "unknown option '$1'; ./dev demo [--keep]" ;;
  esac
  need $(build_packages)
  build release oar oar_grpc_client
  start_server demo-server
  local url=http://127.0.0.1:$http_port address=127.0.0.1:$grpc_port

  echo
  echo "HTTP, POST $url/v1/chat/completions, streamed:"
  python3 clients/python/stream_http.py --url "$url" --max-tokens 96 "Speak, what news from the field?"
  echo
  echo "gRPC, oar.v1.Generation/Generate on $address, streamed:"
  build/release/bin/oar_grpc_client --address "$address" --max-tokens 96 "Speak, what news from the field?"
  echo
  memory=$(awk '/^VmRSS/ {all = $2} /^RssFile/ {file = $2}
    END {printf "%.0f MB resident, of which %.0f MB mapped files", all / 1024, file / 1024}' "/proc/$server_pid/status")
  echo "memory of the server: $memory"
  if [ -n "$keep" ]; then
    trap - EXIT
    disown "$server_pid"
    echo "The server goes on (log: $server_log). Stop it with: kill $server_pid"
    return 0
  fi
  stop_server || status=$?
  [ "$status" = 0 ] || fail "the server ended with status $status instead of 0; its log is $server_log"
  echo "The server finished in order."
}
