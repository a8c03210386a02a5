// Any bytes as a Paddle program of either generation, the rest as its parameter file: an error, or a program
// whose indices all lie inside and tensors whose every byte can be read.
#include "engine/import/paddle_program.h"
#include "tests/fuzz/target.h"
#include "tests/loader/builders.h"

OAR_FUZZ_TARGET(paddle) {
  using namespace oar;
  if (size < 2) return 0;
  // The first two bytes say where the program ends.
  const size_t split = std::min<size_t>(size - 2, data[0] | static_cast<size_t>(data[1]) << 8);
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, split);
  const auto program = paddle::parse_program(text, "fuzz");
  if (!program.ok()) return 0;
  for (const auto& block : program->blocks) {
    for (const auto& op : block.ops) {
      for (const auto& slot : op.inputs) {
        for (auto v : slot.values) OAR_CHECK(static_cast<size_t>(v) < program->values.size());
      }
      for (const auto b : op.blocks) OAR_CHECK(static_cast<size_t>(b) < program->blocks.size());
    }
  }
  const auto tensors = paddle::read_parameters(
      *program, Buffer::wrap_const(data + 2 + split, size - 2 - split, nullptr), "fuzz");
  if (!tensors.ok()) return 0;
  for (const Tensor& t : *tensors) oar_test::touch(t);
  return 0;
}
