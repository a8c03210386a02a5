// TensorRunner: what answers requests of tensors. A Predictor runs the graph of a file, an EncoderModel packs
// the rows of texts; BatchedPredictor, the C API and a server's protocols ask both in the same way.
//
// Threads: all methods from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/evaluate.h"
#include "engine/import/import.h"

namespace oar {

// Where the time of a shared run went, in nanoseconds.
struct RunTimes {
  uint64_t input = 0;    // making one batch of the requests
  uint64_t compute = 0;  // the model
  uint64_t output = 0;   // making the answers
};

class TensorRunner {
 public:
  virtual ~TensorRunner() = default;
  // Another handle on the same weights and threads, with its own memory for runs.
  virtual std::unique_ptr<TensorRunner> another() const = 0;
  // Of the file: "onnx", "safetensors", ...
  virtual const std::string& format() const = 0;
  virtual const std::vector<IoSpec>& inputs() const = 0;
  virtual const std::vector<IoSpec>& outputs() const = 0;
  // Whether a row's answer depends on that row alone, as far as the model says.
  virtual bool rows_are_independent() const = 0;

  // One value per input in the model's order; outputs in the model's order.
  virtual Result<std::vector<Datum>> run(std::vector<Datum> inputs) const = 0;
  // Requests of equal keys may share a run. Here those whose inputs agree in all but their first extent.
  virtual std::string batch_key(std::span<const Datum> inputs) const;
  // The answers to several requests of one key by one run, the first axis of every tensor counting rows.
  // Here the inputs are joined and the outputs split. `times` may be null.
  virtual Result<std::vector<std::vector<Datum>>> run_together(std::span<const std::vector<Datum>> requests,
                                                               RunTimes* times) const;
};

}  // namespace oar
