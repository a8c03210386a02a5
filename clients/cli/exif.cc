#include "clients/cli/exif.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

namespace oar::cli {
namespace {

// Bytes of a file in its own order; nothing where they end before.
class Fields {
 public:
  explicit Fields(std::string_view bytes, bool little = false) : bytes_(bytes), little_(little) {}
  std::optional<uint32_t> number(size_t at, size_t count) const {
    if (at > bytes_.size() || bytes_.size() - at < count) return std::nullopt;
    uint32_t v = 0;
    for (size_t k = 0; k < count; ++k)
      v = v << 8 | static_cast<uint8_t>(bytes_[at + (little_ ? count - 1 - k : k)]);
    return v;
  }

 private:
  std::string_view bytes_;
  bool little_;
};

// A TIFF header and its first directory: 12 bytes an entry, tag 0x0112 is the orientation, of type 3 (u16).
int orientation_in(std::string_view tiff) {
  const bool little = tiff.starts_with("II");
  if (!little && !tiff.starts_with("MM")) return 1;
  const Fields fields(tiff, little);
  const auto directory = fields.number(4, 4);
  const auto entries = directory ? fields.number(*directory, 2) : std::nullopt;
  for (size_t k = 0; entries && k < *entries; ++k) {
    const size_t at = size_t{*directory} + 2 + 12 * k;
    const auto tag = fields.number(at, 2), type = fields.number(at + 2, 2), value = fields.number(at + 8, 2);
    if (!value) return 1;
    if (*tag == 0x0112 && *type == 3) return *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
  }
  return 1;
}

// Segments up to the scan: FF, a marker, and a length that counts itself.
int orientation_of_jpeg(std::string_view file) {
  constexpr uint32_t kScan = 0xDA, kApp1 = 0xE1;
  constexpr std::string_view kExif("Exif\0\0", 6);
  const Fields fields(file);
  for (size_t at = 2;;) {
    const auto mark = fields.number(at, 1), marker = fields.number(at + 1, 1);
    if (!marker || *mark != 0xFF || *marker == kScan) return 1;
    if (*marker == 0xFF) {  // fill bytes may stand before a marker
      ++at;
      continue;
    }
    const auto length = fields.number(at + 2, 2);
    if (!length || *length < 2) return 1;
    const std::string_view body = file.substr(at + 4, *length - 2);
    if (*marker == kApp1 && body.starts_with(kExif)) return orientation_in(body.substr(kExif.size()));
    at += 2 + *length;
    if (at > file.size()) return 1;
  }
}

// Chunks: length, name, bytes, check sum.
int orientation_of_png(std::string_view file) {
  const Fields fields(file);
  for (size_t at = 8; const auto length = fields.number(at, 4);) {
    if (at + 8 > file.size()) return 1;
    if (file.substr(at + 4, 4) == "eXIf") return orientation_in(file.substr(at + 8, *length));
    at += size_t{12} + *length;
  }
  return 1;
}

}  // namespace

int exif_orientation(std::string_view file) {
  if (file.starts_with("\xff\xd8")) return orientation_of_jpeg(file);
  if (file.starts_with("\x89PNG")) return orientation_of_png(file);
  return 1;
}

Result<vision::Image> upright(vision::Image image, int orientation) {
  if (orientation <= 1 || orientation > 8) return image;
  // From 5 on rows are columns; where the first row and the first column lie is what the number says.
  const bool swapped = orientation >= 5;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  OAR_ASSIGN(vision::Image out,
             vision::make_image(swapped ? image.height : image.width, swapped ? image.width : image.height));
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      const int column = swapped ? y : x, row = swapped ? x : y;
      std::memcpy(out.at(x, y),
                  image.at(from_right ? image.width - 1 - column : column,
                           from_bottom ? image.height - 1 - row : row),
                  3);
    }
  }
  return out;
}

}  // namespace oar::cli
