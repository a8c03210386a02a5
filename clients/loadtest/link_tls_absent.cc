// Of a build without OpenSSL (OAR_SERVER=OFF).
#include "clients/loadtest/link.h"

namespace oar::loadtest {

Result<std::shared_ptr<const LinkMaker>> LinkMaker::tls(const std::string&, const TlsOptions&) {
  return unimplemented(
      "server: https needs OpenSSL, which this build leaves out; configure with -DOAR_SERVER=ON");
}

}  // namespace oar::loadtest
