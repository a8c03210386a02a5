#include "engine/tensor/model_file.h"

#include <algorithm>
#include <filesystem>

#include "engine/base/format.h"

namespace oar {

Result<std::string> file_of_model(const std::string& model, const std::string& named) {
  namespace fs = std::filesystem;
  if (named.empty() || named.find('\0') != std::string::npos) {
    return invalid_argument(cat(model, " names a file by an empty name or one with a NUL byte"));
  }
  std::error_code ec;
  const bool is_folder = fs::is_directory(model, ec);
  const fs::path parent = is_folder ? fs::path(model) : fs::path(model).parent_path();
  const fs::path folder = parent.empty() ? "." : parent;
  const fs::path real = fs::canonical(folder / named, ec);
  if (ec) {
    const bool absent = ec == std::errc::no_such_file_or_directory;
    return Status(absent ? StatusCode::kNotFound : StatusCode::kUnavailable,
                  cat("cannot open ", (folder / named).string(), ": ", ec.message()));
  }
  const fs::path own = fs::canonical(model, ec);
  for (const fs::path& home : {fs::canonical(folder, ec), is_folder ? own : own.parent_path()}) {
    // By components: /models/a is not below /models/ab.
    if (!home.empty() &&
        std::mismatch(home.begin(), home.end(), real.begin(), real.end()).first == home.end())
      return real.string();
  }
  return invalid_argument(cat("'", named, "' really lies at ", real.string(),
                              ", which is neither in the folder of ", model, " nor below; copy it there"));
}

}  // namespace oar
