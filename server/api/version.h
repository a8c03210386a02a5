// What the server says it is. OAR_VERSION comes from the project() line of the top CMakeLists.txt.
#pragma once

namespace oar::api {

#ifdef OAR_VERSION
inline constexpr const char* kVersion = OAR_VERSION;
inline constexpr const char* kFingerprint = "oar-" OAR_VERSION;
#else
inline constexpr const char* kVersion = "unversioned";
inline constexpr const char* kFingerprint = "oar";
#endif

}  // namespace oar::api
