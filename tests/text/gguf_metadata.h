// The tokenizer keys of a GGUF file, read without the loader room: enough for tests, not a loader.
#pragma once

#include <string>

#include "engine/base/gguf_vocab.h"
#include "engine/base/status.h"

namespace oar_test {

// `bytes` is the whole file.
oar::Result<oar::GgufVocab> read_gguf_vocab(const std::string& bytes);

}  // namespace oar_test
