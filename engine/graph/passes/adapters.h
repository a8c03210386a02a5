// Places for low-rank adapters (LoRA) in a finished graph: behind each linear layer an op `lora` (engine/ops)
// that adds B A x to the rows whose adapter is in a slot. Runs after every other pass. So what the passes did
// to a weight, they did before: from the weight's expression it is read what an adapter of it must go
// through.
//
// A weight is L W R of the file's W: `mul` and `hadamard` change its columns (R) or rows (L), and a product
// B A of W's shape becomes (L B) (A R). Steps are kept as ops and evaluated on each adapter as it is loaded.
//
// What it is not: it knows no adapter and no file format of adapters (engine/loader/peft.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/weights.h"
#include "kernels/thread_pool.h"

namespace oar {

struct AdapterOptions {
  int64_t slots = 0;              // adapters at once
  int64_t rank = 0;               // the largest
  Format format = Format::f32();  // how slots keep numbers: f32 or bf16
};

// What became of a weight on its way from the file: what its adapter goes through.
struct AdapterBasis {
  // operation(matrix, operands...), as in weights.h.
  struct Step {
    const OpDef* op = nullptr;
    std::vector<Tensor> operands;  // but the first
    Attrs attrs;
  };
  std::vector<Step> inputs;   // on A (r, K)
  std::vector<Step> outputs;  // on B (N, r)
  std::string refusal;        // why an adapter cannot follow; empty: it can
};

// Of weight `value`. Operands of its steps are evaluated now.
Result<AdapterBasis> adapter_basis(const Graph& graph, ValueId value, ThreadPool& pool);
// The constants and expressions that steps of weights take beside the weight, once each, by their own names.
std::vector<NamedWeight> basis_operands(const Graph& graph);
// Of a weight whose file has the rows of each head, (2, head / 2) in the adapter's basis, as (head / 2, 2).
// Goes before all other steps.
void pair_rows(AdapterBasis& basis, int64_t outputs, int64_t head);
// `earlier` goes before all other steps.
void precede(AdapterBasis& basis, const AdapterBasis& earlier);
// A (r, K) or B (N, r), f32, through the steps of its side.
Result<Tensor> through(const std::vector<AdapterBasis::Step>& steps, Tensor matrix, ThreadPool& pool);

// A linear layer that adapters may change.
struct AdapterSite {
  std::string weight;               // the checkpoint's tensor
  int64_t outputs = 0, inputs = 0;  // of the layer
  AdapterBasis basis;
  size_t ranks = 0, a = 0, b = 0;  // indices into graph.states()
};

struct AdapterLayout {
  AdapterOptions options;
  size_t index_input = 0;          // into graph.inputs(): a row's slot, -1 for none (T)
  std::vector<AdapterSite> sites;  // empty: the model takes no adapters
};

// The ops, for every linear layer over all rows of a step: those of `per_row`, an input of a number for each.
Result<AdapterLayout> insert_adapters(Graph& graph, const std::string& per_row, const AdapterOptions& options,
                                      ThreadPool& pool);
// Bytes of all slots.
uint64_t adapter_bytes(const AdapterLayout& layout);

}  // namespace oar
