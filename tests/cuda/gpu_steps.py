"""Steps of ./dev gpu that say whether all is right: the device, its roundings, tests, equalities to the bit, the sanitizer."""
import json
import pathlib
import shutil
import struct
import tarfile
import tempfile

from gpu_day import Skipped

# Equalities to the bit (item by item: decision 32), each a test of its own.
BITS = (("a batch == each alone, decode == prefill", "cuda: a batch equals each alone and decode equals prefill*"),
        ("replayed == not replayed, resumed == uninterrupted", "cuda: an engine whose device draws says*"),
        ("prefix hit == miss", "cuda: a prompt whose pages are kept says*"))
# What runs under the sanitizer: `oar check`, some of it by libraries that the plug-in is to use, and a test each of kernels
# that it has no case of. checked_kernels_test.py holds that every kernel is among these.
CHECKED = (("", ()), ("wgmma", ("--kernels", "rows of prompts")), ("cublaslt", ("--kernels", "rows of prompts")))
BESIDE_CHECK = ("cuda: heads rotated\\, transformed and appended at once are those of one by one",
                "cuda: products and the norms of their rows at once are those of one by one",
                "cuda: products of every format between those of another at once are those of one by one",
                "cuda: combining experts' rows and a norm of these at once is one behind the other",
                "cuda: rows that are made and rounded at once are those of a launch each",
                "cuda: a softplus in its parts\\, over columns that are copied\\, is one launch")
BUNDLE_LIMIT = 64  # MB, unpacked


def describe(day):
    if day.emulated:
        return {"name": "emulated CUDA device"}
    if shutil.which("nvidia-smi") is None:
        raise Skipped("no nvidia-smi: no driver on this machine")
    fields = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,mig.mode.current,power.limit"
    line = day.run("nvidia-smi", f"--id={day.index or 0}", f"--query-gpu={fields}", "--format=csv,noheader").splitlines()[0]
    return dict(zip(fields.split(","), line.split(", ")))


def roundings(day):
    """Every result of 100 cases an instruction, beside those of the emulated device."""
    files = {}
    for side, program in (("device", day.tests), ("emulated", day.bin / "test_cuda_emulated")):
        files[side] = day.out / f"roundings-{side}.txt"
        day.ran(program, "[rounding]", env={"OAR_ROUNDINGS": str(files[side])})
    return compared(*(files[s].read_text(encoding="utf-8").splitlines() for s in ("device", "emulated")))


def compared(device, emulated):
    """Of each instruction: results, how many differ, and by how much; lines are `INSTRUCTION TYPE CASE WORD...`."""
    if len(device) != len(emulated):
        raise RuntimeError(f"{len(device)} cases on the device, {len(emulated)} on the emulated one")
    rows = {}
    for a, b in zip(device, emulated):
        row = rows.setdefault(" ".join(a.split()[:2]), {"cases": 0, "results": 0, "different": 0, "largest_distance": 0})
        row["cases"] += 1
        for x, y in zip(a.split()[3:], b.split()[3:]):
            row["results"] += 1
            if x != y:
                row["different"] += 1
                row["largest_distance"] = max(row["largest_distance"], distance(x, y))
    return rows


def distance(x, y):
    """Between two results in hexadecimal, in units in the last place."""
    a, b = (struct.unpack(">i", bytes.fromhex(word))[0] for word in (x, y))
    a, b = (w if w >= 0 else -(w & 0x7fffffff) for w in (a, b))
    return abs(a - b)


def bits(day):
    return {what: day.part(what, lambda name=name: day.ran(day.tests, name)) for what, name in BITS}


def kernels(day):
    return {"tests": day.ran(day.tests, "[cuda]~[models]~[rounding]")}


def models(day):
    return {"tests": day.ran(day.tests, "[models]~[bits]")}


def plug_in(day):
    """Every kernel against the reference, and how fast it was beside its roofline. The model is tried by the same call."""
    said = day.run(day.bin / "oar", "check", "demo", "--device", day.device, "--json")
    report = json.loads(said.strip().splitlines()[-1])
    kernels = {c["kernel"]: c for c in report["checks"] if "kernel" in c}
    untold = [f"{name}: {launch.get('family', 'the last')}" for name, c in kernels.items() for launch in [*c.get("before", ()), c]
              if "computed_microseconds" not in launch]
    absent = [note for note in report["notes"] if "no kernel" in note]
    if not kernels or untold or absent:
        raise RuntimeError(f"{len(kernels)} kernels; without a roofline: {untold}; {absent}")
    fields = ("error", "bound", "microseconds", "computed_microseconds", "gb_per_second", "tflops")
    return {"checks": len(report["checks"]),
            "kernels": {name: {f: c[f] for f in fields if f in c} for name, c in kernels.items()}}


def interface(day):
    """What every plug-in is asked (tests/plugin), of this one."""
    return {"tests": day.ran(day.bin / "test_plugin", "[any]", env={"OAR_PLUGIN_DEVICE": day.device})}


def checked(day, oar, *before, libraries="", options=()):
    command = (*before, oar, "check", "demo", "--device", day.device, *options)
    return day.run(*command, env={"OAR_CUDA_LIBRARIES": libraries}).strip().splitlines()[-1]


def bundle(day):
    """The archive that travels, unpacked and asked."""
    archives = sorted(day.bin.parent.glob("oar-*.tar.xz"))
    if not archives:
        raise Skipped("no archive beside the programs: ./dev bundle makes it")
    with tempfile.TemporaryDirectory(dir=day.out) as folder:
        with tarfile.open(archives[-1]) as archive:
            archive.extractall(folder)
        home = next(pathlib.Path(folder).glob("oar-*"))
        unpacked = sum(f.stat().st_size for f in home.rglob("*") if f.is_file() and not f.is_symlink())
        day.number("bundle, unpacked", unpacked / 1e6, "MB", at_most=BUNDLE_LIMIT)
        return {"archive": archives[-1].name, "packed_mb": archives[-1].stat().st_size / 1e6,
                "check": checked(day, home / "bin/oar")}


def sanitizer(day):
    """compute-sanitizer over one shape of each kernel: what `oar check` runs, and a test of each family beside it."""
    if day.emulated:
        raise Skipped("the traced build sees every access already")
    tool = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if tool is None:
        raise Skipped("no compute-sanitizer")
    found = {}
    for check in ("memcheck", "racecheck"):
        under = (tool, "--tool", check, "--error-exitcode", "9")
        for used, options in CHECKED:
            name = f"{check}: oar check{used and f' with {used}'}"
            found[name] = day.part(name, lambda u=used, o=options: checked(day, day.bin / "oar", *under, libraries=u, options=o))
        for name in BESIDE_CHECK:
            found[f"{check}: {name}"] = day.part(f"{check} {name}", lambda n=name: day.ran(*under, day.tests, n))
    return found


def cudnn(day):
    """The library's own description of the device, in a file: plans for it can then be made elsewhere."""
    said = day.run(day.tests, "[cudnn]")
    if "skipped: " in said:
        raise Skipped(said.split("skipped: ")[1].splitlines()[0].strip())
    line = next((text for text in said.splitlines() if text.startswith("cudnn_device ")), None)
    if line is None:
        raise RuntimeError(f"no description in the output of [cudnn]:\n{said[-3000:]}")
    description = json.loads(line.split(" ", 1)[1])
    file = day.out / "cudnn-device.json"
    file.write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return {"file": str(file), "description": description}
