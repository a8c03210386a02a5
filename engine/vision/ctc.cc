#include "engine/vision/ctc.h"

#include "engine/base/format.h"

namespace oar::vision {

std::vector<std::string> read_dictionary(std::string_view file) {
  std::vector<std::string> lines;
  while (!file.empty()) {
    const size_t end = file.find('\n');
    std::string_view line = file.substr(0, end);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    lines.emplace_back(line);
    if (end == std::string_view::npos) break;
    file.remove_prefix(end + 1);
  }
  return lines;
}

Result<std::vector<std::string>> ctc_alphabet(std::vector<std::string> lines, int64_t classes) {
  const auto given = static_cast<int64_t>(lines.size());
  if (classes != given + 1 && classes != given + 2) {
    return invalid_argument(cat("a dictionary of ", given, " lines for a recognizer of ", classes,
                                " classes; it has ", classes - 2, " or, with the space, ", classes - 1,
                                " lines"));
  }
  if (classes == given + 2) lines.emplace_back(" ");
  lines.insert(lines.begin(), std::string());
  return lines;
}

ReadText ctc_decode(std::span<const float> probabilities, const std::vector<std::string>& alphabet) {
  ReadText out;
  const size_t classes = alphabet.size(), steps = classes ? probabilities.size() / classes : 0;
  size_t before = 0, kept = 0;
  double sum = 0;
  for (size_t t = 0; t < steps; ++t) {
    const std::span<const float> row = probabilities.subspan(t * classes, classes);
    size_t best = 0;
    for (size_t k = 1; k < classes; ++k) {
      if (row[k] > row[best] || row[best] != row[best]) best = k;
    }
    if (best != 0 && best != before && row[best] == row[best]) {
      out.text += alphabet[best];
      sum += row[best];
      ++kept;
    }
    before = best;
  }
  if (kept) out.confidence = static_cast<float>(sum / static_cast<double>(kept));
  return out;
}

}  // namespace oar::vision
