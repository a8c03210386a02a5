// `oar quantize`: a checkpoint in 16 or 32 bits, of any kind that is read, becomes a Hugging Face folder in
// one of our schemes. It goes a layer at a time. Never more than one layer's weights, statistics and
// activations of the calibration text are in memory; the source is mapped.
//
// The result is written under OUT.partial and renamed when whole. After an interruption the same call goes on
// where it stopped: each stage is synced to the disk and then noted in OUT.partial/progress.json.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/loader/checkpoint.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/text/tokenizer.h"
#include "kernels/thread_pool.h"

namespace oar {

struct QuantizeOptions {
  std::string weights = "int4";  // weight_scheme()
  // rtn: scales by clip search, plain rounding. hqq: half-quadratic. gptq: scales by clip search weighted
  // with the inputs' power, rounding with error feedback. A tenth of the text is held back from that fit; a
  // matrix whose output error there is no lower than by rtn is rounded. awq, smoothquant: scales of input
  // channels folded into the norm before, where there is one, then rtn.
  std::string method = "rtn";
  // parse_rotation(): "all" spreads outliers before anything is rounded, wherever there is a place. A
  // rotation that is named and has none is UNIMPLEMENTED.
  std::string rotate = "none";
  std::string calibration;             // text; needed by gptq, awq and smoothquant, refused by the others
  int64_t calibration_tokens = 32768;  // at most
  int64_t calibration_context = 512;   // tokens per window
  double damping = 0.01;               // gptq
  bool activation_order = true;        // gptq
  double smoothquant_alpha = 0.5;
  int threads = 0;
};

// The least text that says anything of a matrix: what gptq, awq and smoothquant ask for.
inline constexpr int64_t kCalibrationTokens = 512;

// What one matrix lost.
struct LayerError {
  std::string name, format;
  double weight_error = 0;  // |W - W'| / |W|
  // |(W - W') X| / |W X| on the calibration text, of gptq on what was held back; -1: not measured
  double output_error = -1;
  bool fell_back = false;  // gptq: rounded, since error feedback was no better on what was held back
};

struct QuantizeReport {
  std::vector<LayerError> layers;    // of this run; a resumed one lists what was left
  std::vector<UnevenMatrix> uneven;  // left as they are
  uint64_t source_bytes = 0, bytes = 0;
  std::string left_out;  // rotations that found no place, and why
  size_t resumed = 0;    // tensors found done
  size_t drafts = 0;     // tensors of draft heads that are left out, as they do not fit what was made
  double seconds = 0;
};

// INVALID_ARGUMENT (field "calibration") when the text has fewer than kCalibrationTokens tokens;
// ALREADY_EXISTS when `out` is there. `on_layer` (may be empty) is told each matrix as it is done. CANCELLED
// when `progress` says stop: what is done stays in OUT.partial; any other failure removes what this call
// made.
Result<QuantizeReport> quantize_model(const Checkpoint& checkpoint, const Tokenizer* tokenizer,
                                      const std::string& out, const QuantizeOptions& options,
                                      const std::function<void(const LayerError&)>& on_layer = {},
                                      const Progress& progress = {});

// By name, for messages and the command line.
std::vector<std::string> quantize_methods();

}  // namespace oar
