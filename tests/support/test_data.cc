#include "tests/support/test_data.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace oar_test {
namespace fs = std::filesystem;

std::string source_path(const std::string& relative) { return std::string(OAR_SOURCE_DIR) + "/" + relative; }

std::optional<std::string> data_path(const std::string& relative) {
  const char* env = std::getenv("OAR_TEST_DATA");
  const fs::path root =
      env && *env ? fs::path(env) : fs::path(OAR_SOURCE_DIR).parent_path() / "shared" / "data";
  const fs::path p = root / relative;
  if (!fs::exists(p)) return std::nullopt;
  return p.string();
}

std::vector<std::string> files_of_kind(const std::string& own, const std::string& published) {
  std::vector<std::string> paths = {source_path("tests/data/" + own)};
  if (const auto path = data_path(published)) paths.push_back(*path);
  return paths;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::ostringstream s;
  s << in.rdbuf();
  return std::move(s).str();
}

std::string temp_dir() {
  struct Dir {
    fs::path path;
    const pid_t owner = getpid();  // a forked child that exits leaves it alone
    Dir() {
      std::string pattern = (fs::temp_directory_path() / "oar-test-XXXXXX").string();
      if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
      path = pattern;
    }
    ~Dir() {
      std::error_code ec;
      if (getpid() == owner) fs::remove_all(path, ec);
    }
  };
  static Dir dir;
  return dir.path.string();
}

}  // namespace oar_test
