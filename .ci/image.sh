# The container image, built from deploy/docker/Dockerfile and run without a daemon: a base image from the distribution's
# own packages (mmdebstrap), buildah for the Dockerfile, podman with runc to run it. Sourced by ./dev.

image_packages() { echo mmdebstrap buildah podman runc uidmap netavark catatonit; }

# Tools, root and a snapshotting file system are needed; says which is missing.
image_obstacle() {
  local tool
  for tool in mmdebstrap buildah podman runc; do
    command -v "$tool" >/dev/null || {
      echo "$tool is not installed (as root: apt-get install --no-install-recommends $(image_packages))"
      return
    }
  done
  [ "$(id -u)" = 0 ] || echo "not root"
}

# The store lies in build/image and goes when the shell ends; the base's archive stays for the next run.
image_open() {
  image_dir=$PWD/build/image
  image_name=localhost/oar:ci
  mkdir -p "$image_dir/tmp"
  export TMPDIR=$image_dir/tmp
  image_store=(--root "$image_dir/store" --runroot "$image_dir/run" --storage-driver overlay)
  trap image_close EXIT
}
image_close() {
  podman_ rm -f -t 5 oar-ci >/dev/null 2>&1 || true
  umount "$image_dir/store/overlay" 2>/dev/null || true
  rm -rf "$image_dir/store" "$image_dir/run" "$image_dir/tmp"
}
podman_() { podman "${image_store[@]}" --cgroup-manager cgroupfs "$@" 2> >(grep -vE 'CNI|systemd connection' >&2); }

# Without what debian:bookworm-slim leaves out too: manuals and translations, but not licences.
image_base() {
  local slim=() folder
  for folder in doc groff info linda lintian locale man; do slim+=("--dpkgopt=path-exclude=/usr/share/$folder/*"); done
  slim+=('--dpkgopt=path-include=/usr/share/doc/*/copyright')
  [ -f "$image_dir/base.tar" ] ||
    mmdebstrap --quiet --format=tar --variant=minbase --include=ca-certificates "${slim[@]}" bookworm \
      "$image_dir/base.tar.new" /etc/apt/sources.list.d/debian.sources || return 1
  [ -f "$image_dir/base.tar" ] || mv "$image_dir/base.tar.new" "$image_dir/base.tar"
  podman_ import -q "$image_dir/base.tar" localhost/debian:bookworm-slim
}

image_build() {
  local cache=()
  if command -v ccache >/dev/null; then
    mkdir -p "$(ccache --get-config cache_dir)"
    cache=(-v "$(ccache --get-config cache_dir):/root/.cache/ccache")
  fi
  buildah "${image_store[@]}" bud --format docker --isolation chroot --pull-never "${cache[@]}" \
    --build-arg BASE=localhost/debian:bookworm-slim --build-arg SRC="$PWD" -f deploy/docker/Dockerfile -t "$image_name" .
}

# What is above the base at most 60 MB, as the layers say; and the whole, compressed.
image_size() {
  local whole base above
  whole=$(podman_ image inspect --format '{{.Size}}' "$image_name")
  base=$(podman_ image inspect --format '{{.Size}}' localhost/debian:bookworm-slim)
  above=$(((whole - base + 999999) / 1000000))
  podman_ save -q --format docker-archive "$image_name" 2>/dev/null | gzip -6 | wc -c |
    awk -v above="$above" '{printf "image: %d MB above the base, %.1f MB compressed with it\n", above, $1 / 1e6}'
  [ "$above" -le 60 ] || {
    echo "ERROR: the image is $above MB above its base; 60 are allowed"
    return 1
  }
}

# Runs it as an operator would and asks it, over HTTP and by its own health check; then an orderly end.
image_run() {
  local tries answer status
  podman_ --runtime runc run -d --name oar-ci --ulimit nofile=4096:4096 --ulimit nproc=1024:1024 --network host \
    --read-only --cap-drop ALL --security-opt no-new-privileges "$image_name" \
    serve demo --http 127.0.0.1:18000 --grpc 127.0.0.1:18001 --threads 2 --memory 512MiB >/dev/null || return 1
  for tries in $(seq 1 300); do
    [ "$(podman_ inspect --format '{{.State.Running}}' oar-ci)" = true ] || {
      echo "ERROR: it ended early:" && podman_ logs oar-ci && return 1
    }
    podman_ exec oar-ci /usr/bin/oar health --url http://127.0.0.1:18000 2>/dev/null && break
    sleep 0.2
  done
  [ "$(podman_ exec oar-ci id -u)" = 65532 ] || { echo "ERROR: it runs as root" && return 1; }
  if podman_ exec oar-ci touch /usr/share/oar/x 2>/dev/null; then echo "ERROR: its root can be written to" && return 1; fi
  answer=$(python3 clients/python/stream_http.py --url http://127.0.0.1:18000 --max-tokens 24 "Speak, what news?")
  printf '%s\n' "$answer"
  [ -n "$answer" ] || { echo "ERROR: no answer" && return 1; }
  # What is in it, beside it: the program's bill from where it was built, and the base's packages by their own list.
  podman_ exec oar-ci cat /usr/share/doc/oar/oar.cdx.json >"$image_dir/oar.cdx.json" &&
    podman_ exec oar-ci cat /var/lib/dpkg/status >"$image_dir/status" &&
    python3 .ci/sbom.py "$image_dir/oar.cdx.json" --status "$image_dir/status" || return 1
  podman_ stop -t 30 oar-ci >/dev/null
  status=$(podman_ inspect --format '{{.State.ExitCode}}' oar-ci)
  [ "$status" = 0 ] || { echo "ERROR: it ended with status $status" && return 1; }
}

image_check() {
  local started=$SECONDS
  image_open
  image_base && image_build && image_size && image_run || return 1
  echo "image: built, run, answered and stopped in $((SECONDS - started)) s"
}
