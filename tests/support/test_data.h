// Where tests find files: the repository's own, and the optional real-world data beside it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace oar_test {

// Absolute path of a file in the repository.
std::string source_path(const std::string& relative);

// Absolute path of a file of the real-data collection ($OAR_TEST_DATA, default ../shared/data beside the
// repository), or nullopt when it is not there; a test that has nothing else to run then says OAR_SKIP.
std::optional<std::string> data_path(const std::string& relative);

// What a test of a kind of file runs on: our own small file of that kind, in tests/data, and, where the
// collection is there, a published one.
std::vector<std::string> files_of_kind(const std::string& own, const std::string& published);

// The whole file; fails the test when it cannot be read.
std::string read_file(const std::string& path);

// A fresh directory for this process, removed at exit.
std::string temp_dir();

}  // namespace oar_test
