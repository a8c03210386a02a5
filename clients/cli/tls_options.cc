#include "clients/cli/tls_options.h"

namespace oar::cli {

void add_tls_options(CLI::App& command, loadtest::TlsOptions& o) {
  command.add_option("--tls-ca", o.ca,
                     "https: PEM file with the authorities to trust; default: the system's");
  command.add_option("--tls-cert", o.certificate,
                     "https: PEM file with this client's certificate (mutual TLS)");
  command.add_option("--tls-key", o.key, "https: PEM file with its private key");
  command.add_flag("!--insecure", o.verify, "https: accept any certificate");
}

}  // namespace oar::cli
