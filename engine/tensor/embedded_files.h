// Files that a program carries inside itself, such as the default model of `oar`. They have paths,
// "embedded:FOLDER/NAME", and everything in mapped_file.h takes these as it takes a file's: the bytes are
// used where the system mapped the program, page by page as they are touched; nothing is unpacked.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace oar {

inline constexpr std::string_view kEmbeddedPrefix = "embedded:";

struct EmbeddedFile {
  const char* path = "";            // "embedded:demo/config.json"
  const std::byte* data = nullptr;  // for as long as the process lives; weights on a page's border
  size_t size = 0;
};

// What the program carries; call it once, before the first model is opened. The library carries nothing.
void set_embedded_files(std::span<const EmbeddedFile> files);
std::span<const EmbeddedFile> embedded_files();

}  // namespace oar
