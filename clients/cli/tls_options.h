// The options of commands that talk to a server over https.
#pragma once

#include <CLI/CLI.hpp>

#include "clients/loadtest/link.h"

namespace oar::cli {

void add_tls_options(CLI::App& command, loadtest::TlsOptions& options);

}  // namespace oar::cli
