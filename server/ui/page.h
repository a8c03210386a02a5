// The page that a browser gets from GET /: a chat with the models that are served, and how the server is
// doing. One file (index.html with style.css and the scripts in it, part of the program), nothing fetched
// from elsewhere. It is a client of the public endpoints like any other: there is no endpoint for it alone,
// and the server keeps nothing for it.
#pragma once

#include <string>

namespace oar::ui {

struct Page {
  std::string html;
  // Value of the header Content-Security-Policy: nothing but the page's own script and style, known by their
  // hashes, may run; only this server may be asked; no text may become markup.
  std::string content_security_policy;
};

Page status_page();
// GET /docs: what /openapi.json says, to read (docs.html).
Page docs_page();

}  // namespace oar::ui
