#include "engine/loader/ranges.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"

namespace oar {

Status ByteReader::truncated(uint64_t size, std::string_view what) const {
  return data_loss(cat(name_, ": ", what, " at byte ", at_, " needs ", size, " bytes, but ", remaining(),
                       " are left; the file is truncated or damaged"));
}

std::string show_name(std::string_view name) {
  constexpr size_t kLongest = 120;
  std::string out = "'";
  for (char c : name.substr(0, kLongest)) out += c >= 0x20 && c < 0x7f ? c : '?';
  if (name.size() > kLongest) out += "...";
  return out + "'";
}

Status sort_and_check_overlap(std::vector<NamedRange>& ranges, std::string_view file) {
  std::sort(ranges.begin(), ranges.end(), [](const NamedRange& a, const NamedRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  const NamedRange* last = nullptr;  // of those that hold bytes
  for (const NamedRange& r : ranges) {
    if (r.begin == r.end) continue;
    if (last && r.begin < last->end) {
      return data_loss(cat(file, ": tensors ", show_name(last->name), " [", last->begin, ", ", last->end,
                           ") and ", show_name(r.name), " [", r.begin, ", ", r.end, ") overlap"));
    }
    last = &r;
  }
  return ok_status();
}

}  // namespace oar
