// Huge pages for memory that is read at its full speed: each small page costs a walk through the page tables.
#pragma once

#include "engine/tensor/buffer.h"

namespace oar {

// Asks for them where whole ones lie in `buffer`. A refusal costs a few percent.
void prefer_huge_pages(const Buffer& buffer);

}  // namespace oar
