// Finds a device plug-in (plugin.h), loads it and checks what it says of itself, so that nothing behind this
// needs to doubt the table. What it is not: the Backend over it (backend_plugin.cc).
#pragma once

#include <memory>
#include <string>

#include "engine/base/log.h"
#include "engine/base/status.h"
#include "engine/tensor/plugin.h"

namespace oar {

// "cuda", "cuda:1", "./liboar_mine.so:0".
struct DeviceName {
  std::string plugin;
  int32_t index = 0;
};
// INVALID_ARGUMENT (field "device") unless a name or path, alone or with ":" and a number behind it.
Result<DeviceName> parse_device_name(const std::string& text);

// The table, checked and with what the plug-in's header did not have yet as NULL. INVALID_ARGUMENT says what
// is wrong with it: null, too small, another major version, no name, a required function missing, half a
// group of optional ones. `source` names it in messages.
Result<oar_plugin> check_plugin(const oar_plugin* table, const std::string& source);

// Loads by path (anything with a slash) or by name: liboar_NAME.so beside the running program, in ../lib/oar
// of it, or where the dynamic linker looks. NOT_FOUND or INVALID_ARGUMENT with the linker's or the
// handshake's words. A plug-in stays loaded until the process ends: threads and drivers of its own may
// outlive its devices. What it says while it is loaded goes to `log`.
Result<oar_plugin> load_plugin(const std::string& name, const Logger& log);

// As long as the result lives, what plug-ins log goes to `log`, unless somebody asked later and still
// listens. A plug-in does not say for whom it speaks, and may speak when nobody listens.
std::shared_ptr<const void> hear_plugins(const Logger& log);

}  // namespace oar
