#!/usr/bin/env python3
"""Writes engine/text/unicode/tables.cc from the Unicode Character Database.

    engine/text/unicode/generate.py [/usr/share/unicode] > engine/text/unicode/tables.cc

The result is committed, so a build needs neither Python nor the database. Properties are two-stage tables: the high
bits of a code point choose a block of 128 values, equal blocks are stored once. See unicode.h for their meaning.
"""
import re
import sys
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else "/usr/share/unicode")
COUNT = 0x110000
BLOCK = 128

# Order must match enum class GeneralCategory in unicode.h.
CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co").split()
# Order must match enum class GraphemeBreak in unicode.h.
BREAKS = ("Other CR LF Control Extend ZWJ Regional_Indicator Prepend SpacingMark L V T LV LVT "
          "Extended_Pictographic").split()


def fields(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.split("#", 1)[0].strip()
        if line:
            yield [f.strip() for f in line.split(";")]


def span(text):
    first, _, last = text.partition("..")
    return range(int(first, 16), int(last or first, 16) + 1)


def property_ranges(path, wanted):
    return [cp for f in fields(path) if f[1] == wanted for cp in span(f[0])]


category = ["Cn"] * COUNT
ccc = [0] * COUNT
decomposition = {}  # code point -> (is_compatibility, [code points])
lower_delta = [0] * COUNT
range_start = None
for line in (ROOT / "UnicodeData.txt").read_text().splitlines():
    f = line.split(";")
    cp = int(f[0], 16)
    cps = range(cp, cp + 1)
    if f[1].endswith(", First>"):
        range_start = cp
    elif f[1].endswith(", Last>"):
        cps = range(range_start, cp + 1)
    for c in cps:
        category[c] = f[2]
        ccc[c] = int(f[3])
        if f[13]:
            lower_delta[c] = int(f[13], 16) - c
    if f[5]:
        parts = f[5].split()
        compat = parts[0].startswith("<")
        decomposition[cp] = (compat, [int(x, 16) for x in parts[1 if compat else 0:]])
# U+0130 lower-cases to two code points ("i" and U+0307); unicode.cc knows that one, the table leaves it alone.
lower_delta[0x130] = 0

alphabetic = set(property_ranges(ROOT / "DerivedCoreProperties.txt", "Alphabetic"))
white_space = set(property_ranges(ROOT / "PropList.txt", "White_Space"))
properties = [CATEGORIES.index(category[c]) | (c in alphabetic) << 5 | (c in white_space) << 6 for c in range(COUNT)]

grapheme = [0] * COUNT
for f in fields(ROOT / "auxiliary/GraphemeBreakProperty.txt"):
    for c in span(f[0]):
        grapheme[c] = BREAKS.index(f[1])
for c in property_ranges(ROOT / "emoji/emoji-data.txt", "Extended_Pictographic"):
    grapheme[c] = grapheme[c] or BREAKS.index("Extended_Pictographic")

fold_delta = [0] * COUNT
for f in fields(ROOT / "CaseFolding.txt"):
    if f[1] in "CS":
        c = int(f[0], 16)
        fold_delta[c] = int(f[2], 16) - c


def decompose(cp, compat):
    entry = decomposition.get(cp)
    if entry is None or (entry[0] and not compat):
        return [cp]
    return [x for part in entry[1] for x in decompose(part, compat)]


sequences = []  # all decompositions, one after the other
records = [(0, 0, 0, 0)]  # canonical offset, length, compatibility offset, length
record_of = [0] * COUNT
seen = {}


def place(seq):
    key = tuple(seq)
    if key not in seen:
        seen[key] = len(sequences)
        sequences.extend(seq)
    return seen[key], len(seq)


for cp in sorted(decomposition):
    canonical, compat = decompose(cp, False), decompose(cp, True)
    a = place(canonical) if canonical != [cp] else (0, 0)
    record_of[cp] = len(records)
    records.append(a + place(compat))

excluded = {c for f in fields(ROOT / "DerivedNormalizationProps.txt") if f[1] == "Full_Composition_Exclusion"
            for c in span(f[0])}
compositions = sorted(((parts[0] << 21) | parts[1], cp) for cp, (compat, parts) in decomposition.items()
                      if not compat and len(parts) == 2 and cp not in excluded)

scripts = {}
for f in fields(ROOT / "Scripts.txt"):
    r = span(f[0])
    scripts.setdefault(f[1], []).append((r[0], r[-1]))
for name, ranges in scripts.items():
    ranges.sort()
    merged = []
    for lo, hi in ranges:
        if merged and merged[-1][1] + 1 == lo:
            merged[-1] = (merged[-1][0], hi)
        else:
            merged.append((lo, hi))
    scripts[name] = merged

out = []


def array(kind, name, values, fmt=str):
    values = [fmt(v) for v in values]
    out.append(f"const {kind} {name}[{len(values)}] = {{")
    line = "   "
    for v in values:
        if len(line) + len(v) + 2 > 118:
            out.append(line)
            line = "   "
        line += f" {v},"
    out.append(line)
    out.append("};")
    return len(values)


def two_stage(name, values):
    blocks, stage1, stage2 = {}, [], []
    for start in range(0, COUNT, BLOCK):
        block = tuple(values[start:start + BLOCK])
        if block not in blocks:
            blocks[block] = len(blocks)
            stage2.extend(block)
        stage1.append(blocks[block])
    kind1 = "uint8_t" if len(blocks) <= 256 else "uint16_t"
    kind2 = "uint8_t" if max(stage2) < 256 else "uint16_t"
    array(kind1, f"{name}_blocks", stage1)
    array(kind2, f"{name}_values", stage2)
    sizes[name] = (kind1, len(stage1), kind2, len(stage2))


def deltas(name, values):
    distinct = [0] + sorted(set(values) - {0})
    index = {d: i for i, d in enumerate(distinct)}
    two_stage(name, [index[v] for v in values])
    array("int32_t", f"{name}_deltas", distinct)


sizes = {}
version = re.search(r"-(\d+\.\d+\.\d+)", (ROOT / "DerivedAge.txt").read_text()).group(1)
two_stage("kProperties", properties)
two_stage("kCombiningClass", ccc)
two_stage("kGraphemeBreak", grapheme)
two_stage("kDecompositionIndex", record_of)
array("DecompositionRecord", "kDecompositions", records, lambda r: "{%d, %d, %d, %d}" % r)
array("char32_t", "kDecompositionData", sequences, lambda c: f"0x{c:X}")
array("Composition", "kCompositions", compositions, lambda c: "{0x%XULL, 0x%X}" % c)
deltas("kLowercase", lower_delta)
deltas("kFold", fold_delta)
flat, index = [], []
for name in sorted(scripts):
    index.append((name, len(flat), len(scripts[name])))
    flat.extend(scripts[name])
array("CodePointRange", "kScriptRanges", flat, lambda r: "{0x%X, 0x%X}" % r)
array("ScriptEntry", "kScripts", index, lambda s: '{"%s", %d, %d}' % s)

print(f"""// Generated by engine/text/unicode/generate.py from the Unicode Character Database {version}. Do not edit.
// clang-format off
#include "engine/text/unicode/tables.h"

namespace oar::unicode_tables {{

const char kVersion[] = "{version}";
const size_t kCompositionCount = {len(compositions)};
const size_t kScriptCount = {len(index)};
const size_t kFoldDeltaCount = {len(set(fold_delta) | {0})};
""")
print("\n".join(out))
print("\n}  // namespace oar::unicode_tables")
for name, (k1, n1, k2, n2) in sizes.items():
    print(f"extern const {k1} {name}_blocks[{n1}]; extern const {k2} {name}_values[{n2}];", file=sys.stderr)
