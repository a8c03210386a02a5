// What tests of models from GGUF files share: the names that llama.cpp's converter gives, and files whose
// metadata says something else, key by key.
#pragma once

#include <string>
#include <vector>

#include "engine/base/json.h"
#include "tests/loader/builders.h"
#include "tests/support/sample.h"

namespace oar_test {

// tests/golden/gguf_names.json, of one golden.
class GgufNames {
 public:
  explicit GgufNames(const std::string& golden);
  const std::string& architecture() const { return architecture_; }
  // Of a tensor of the checkpoint, whose name is without the number of an expert: one name, or one for each
  // part that the converter makes of it, or none where it is joined to another.
  std::vector<std::string> of(const std::string& name) const;

 private:
  std::string architecture_;
  oar::json::object tensors_;
};

// Each key of the metadata with other values, of other types, under another name and left out: an error that
// names the key or one that it contradicts, or a model that can be built; never a crash. `turn` counts over
// all files: a part of the values for each key, others in the next file.
void check_changed_metadata(const GgufBuilder& file, const std::string& name, size_t& turn);

}  // namespace oar_test
