// Codings of bodies, by zlib: gzip (RFC 1952), and what HTTP calls deflate, which is zlib's format (RFC
// 1950).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace oar::http {

enum class Coding { kIdentity, kGzip, kDeflate };

// Of a Content-Encoding; absent where it is another one, or several.
std::optional<Coding> read_coding(std::string_view content_encoding);
// The best that an Accept-Encoding takes, by its weights; gzip of equals. kIdentity where none is named.
Coding accepted_coding(std::string_view accept_encoding);
const char* coding_name(Coding coding);

// INVALID_ARGUMENT for bytes that are not of this coding, or go on behind its end; OUT_OF_RANGE when the text
// has more than `max_bytes`. No more than that is ever held.
Result<std::string> decompress(std::string_view bytes, Coding coding, size_t max_bytes);
std::string compress(std::string_view bytes, Coding coding);

}  // namespace oar::http
