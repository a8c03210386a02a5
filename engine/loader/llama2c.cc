#include "engine/loader/llama2c.h"

#include "engine/loader/byte_reader.h"

namespace oar {
namespace {

constexpr uint64_t kHeaderBytes = 7 * sizeof(int32_t);

// Where one kind of weight lies: `layers` tensors of `shape`, one after the other.
struct Part {
  const char*
      name;  // Hugging Face name; "model.layers.N." is put before it where layers is not 0; null: skipped
  int64_t layers;  // 0: a single tensor
  Shape shape;
};

std::vector<Part> parts_of(const Llama2c& m) {
  const int64_t head = m.width / m.heads, kv = head * m.kv_heads, n = m.layers;
  std::vector<Part> parts = {
      {"model.embed_tokens.weight", 0, {m.vocab, m.width}},
      {"input_layernorm.weight", n, {m.width}},
      {"self_attn.q_proj.weight", n, {m.width, m.width}},
      {"self_attn.k_proj.weight", n, {kv, m.width}},
      {"self_attn.v_proj.weight", n, {kv, m.width}},
      {"self_attn.o_proj.weight", n, {m.width, m.width}},
      {"post_attention_layernorm.weight", n, {m.width}},
      {"mlp.gate_proj.weight", n, {m.ffn, m.width}},
      {"mlp.down_proj.weight", n, {m.width, m.ffn}},
      {"mlp.up_proj.weight", n, {m.ffn, m.width}},
      {"model.norm.weight", 0, {m.width}},
      {nullptr, 0, {m.context, head / 2}},  // cosines
      {nullptr, 0, {m.context, head / 2}},  // sines
  };
  if (!m.tied) parts.push_back({"lm_head.weight", 0, {m.vocab, m.width}});
  return parts;
}

Status read_header(ByteReader& in, const std::string& name, Llama2c& m) {
  int32_t vocab = 0;
  const auto field = [&](std::string_view what, int64_t& out) -> Status {
    int32_t v = 0;
    OAR_RETURN_IF_ERROR(in.read(what, v));
    if (v <= 0) return data_loss(cat(name, ": the header's ", what, " is ", v, "; it must be positive"));
    out = v;
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(field("dim", m.width));
  if (m.width == 0x616b3432) {
    return unimplemented(cat(name,
                             " is a llama2.c file of version 1 or later (\"ak42\"); export version 0, or "
                             "safetensors or GGUF"));
  }
  OAR_RETURN_IF_ERROR(field("hidden_dim", m.ffn));
  OAR_RETURN_IF_ERROR(field("n_layers", m.layers));
  OAR_RETURN_IF_ERROR(field("n_heads", m.heads));
  OAR_RETURN_IF_ERROR(field("n_kv_heads", m.kv_heads));
  OAR_RETURN_IF_ERROR(in.read("vocab_size", vocab));
  OAR_RETURN_IF_ERROR(field("seq_len", m.context));
  if (vocab == 0) return data_loss(cat(name, ": the header's vocab_size is 0"));
  m.tied = vocab > 0;
  m.vocab = vocab > 0 ? vocab : -static_cast<int64_t>(vocab);
  if (m.width % m.heads != 0 || (m.width / m.heads) % 2 != 0 || m.heads % m.kv_heads != 0) {
    return data_loss(
        cat(name, ": dim ", m.width, ", n_heads ", m.heads, ", n_kv_heads ", m.kv_heads,
            ": dim must be an even multiple of n_heads, and n_heads a multiple of n_kv_heads. Is this a "
            "llama2.c file?"));
  }
  return ok_status();
}

}  // namespace

Result<Llama2c> parse_llama2c(const Buffer& file, const std::string& name) {
  ByteReader in({static_cast<const std::byte*>(file.data()), file.size()}, name);
  Llama2c m;
  OAR_RETURN_IF_ERROR(read_header(in, name, m));

  // The size first: only then is n_layers known to be a number of tensors that the file can hold.
  const std::vector<Part> parts = parts_of(m);
  uint64_t need = kHeaderBytes;
  for (const Part& p : parts) {
    const auto one = tensor_bytes(p.shape, Format::f32());
    uint64_t all = 0;
    if (!one.ok() ||
        __builtin_mul_overflow(static_cast<uint64_t>(*one), std::max<int64_t>(p.layers, 1), &all) ||
        __builtin_add_overflow(need, all, &need)) {
      return data_loss(cat(name, ": the header's sizes overflow. Is this a llama2.c file?"));
    }
  }
  if (need != file.size()) {
    return data_loss(cat(name, ": a llama2.c file with this header (dim ", m.width, ", layers ", m.layers,
                         ", vocabulary ", m.vocab, ") has ", need, " bytes, this one ", file.size(),
                         "; it is truncated or damaged"));
  }
  uint64_t at = kHeaderBytes;
  for (const Part& p : parts) {
    const uint64_t size = static_cast<uint64_t>(*tensor_bytes(p.shape, Format::f32()));
    for (int64_t layer = 0; layer < std::max<int64_t>(p.layers, 1); ++layer, at += size) {
      if (!p.name) continue;
      OAR_ASSIGN(Tensor t, Tensor::make(p.shape, Format::f32(), file.slice(at, size)));
      m.tensors.emplace(p.layers > 0 ? cat("model.layers.", layer, ".", p.name) : p.name, std::move(t));
    }
  }
  return m;
}

Result<Llama2c> open_llama2c(const std::string& path, const LoadOptions& options, const Progress& progress) {
  OAR_ASSIGN(auto file, MappedFile::open(path, {.mmap = options.mmap, .progress = progress}));
  OAR_ASSIGN(Llama2c out, parse_llama2c(file_slice(file, 0, file->size()), path));
  OAR_RETURN_IF_ERROR(file->still_whole());
  return out;
}

}  // namespace oar
