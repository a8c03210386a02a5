// The tokenizer of a checkpoint, whichever of the sources it brought.
#pragma once

#include "engine/loader/tokenizer_files.h"
#include "engine/text/tokenizer.h"

namespace oar {

// First of: tokenizer.json, vocab.json with merges.txt, vocab.txt, a GGUF vocabulary, a SentencePiece model,
// llama2.c's tokenizer.bin. `vocab_size` is the model's (llama2.c's file does not say its own). NOT_FOUND
// when there is none.
Result<TokenizerPtr> make_tokenizer(const TokenizerFiles& files, int64_t vocab_size);

}  // namespace oar
