// The four normal forms of UAX #15. Input must be well-formed UTF-8. O(n log n): a run of combining marks is
// sorted stably by class, however long it is.
#pragma once

#include <string>
#include <string_view>

namespace oar {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Appends the normal form of `text` to `out`. What is already in `out` takes no part.
void append_normalized(std::string& out, std::string_view text, NormalForm form);
std::string normalized(std::string_view text, NormalForm form);

}  // namespace oar
