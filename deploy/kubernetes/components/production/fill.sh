# sh fill.sh LIST FOLDER: downloads what LIST names into FOLDER, each file under a temporary name until its SHA-256 is right. A
# file that is there with that sum stays; an interrupted one goes on where it was. FOLDER/.complete says that all are there.
set -eu
list=$1 folder=$2

sum_of() { [ ! -f "$1" ] || sha256sum "$1" | cut -d ' ' -f 1; }

while read -r sum path url; do
  case "$sum" in '' | '#'*) continue ;; esac
  case "/$path/" in */../* | //*) echo "$path must lie below the folder" >&2 && exit 1 ;; esac
  target=$folder/$path
  if [ "$(sum_of "$target")" = "$sum" ]; then
    echo "$path is there"
    continue
  fi
  rm -f "$folder/.complete"
  mkdir -p "$(dirname "$target")"
  if [ "$(sum_of "$target.part")" != "$sum" ]; then
    # The token goes through a pipe, so that no list of processes shows it.
    printf '%s' "${TOKEN:+header = \"Authorization: Bearer $TOKEN\"}" |
      curl -fsSL --retry 5 --continue-at - --config - --output "$target.part" "$url"
  fi
  found=$(sum_of "$target.part")
  if [ "$found" != "$sum" ]; then
    rm -f "$target.part"
    echo "$path has SHA-256 $found where the list says $sum; $url is another file" >&2
    exit 1
  fi
  mv "$target.part" "$target"
  echo "$path was downloaded"
done <"$list"
: >"$folder/.complete"
