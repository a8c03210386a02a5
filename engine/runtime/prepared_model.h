// A cache of prepared models: the graph after all passes and its packed weights, in one file that the next
// load maps. Entries are named by what they depend on, so that nothing ever has to be invalidated:
//   the model's file (name, size, time of change, sampled content: content_hash.h), the passes, the
//   processor's instruction set and the version below. Other files of the model (external data, parameters)
//   are listed in the entry with size and time, and compared when it is opened.
// Entries are written beside their name and renamed over it, so that readers see whole ones only. Every byte
// is checked when one is opened (sealed_file.h): damage is DATA_LOSS. The folder belongs to the user: an
// entry forged to pass these checks is trusted as the program is.
#pragma once

#include <string>

#include "engine/graph/packed_weights.h"
#include "engine/graph/pass.h"
#include "engine/import/import.h"

namespace oar {

struct PreparedModel {
  ImportedModel model;  // its graph after all passes; constants that were packed are without bytes
  PackedWeights packed;
  std::vector<PassReport> passes;
};

// The entry's path in `cache_dir` for the model file or folder at `path`, packed for the kernels of the
// backend of this name; `calibration` tells the samples apart that its ranges are from. Errors of the file
// system.
Result<std::string> prepared_model_path(const std::string& cache_dir, const std::string& path,
                                        const std::set<std::string>& disabled_passes, Precision precision,
                                        std::string_view backend, std::string_view calibration = {});
// NOT_FOUND when there is no entry, or it was made of other files; DATA_LOSS when it is damaged.
Result<PreparedModel> load_prepared_model(const std::string& entry, int threads);
// `limit`: bytes of all entries, as make_room() has it.
Status save_prepared_model(const std::string& entry, const PreparedModel& model, uint64_t limit, int threads);

}  // namespace oar
