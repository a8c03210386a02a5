// What the server says it is. OAR_VERSION comes from the project() line of the top CMakeLists.txt.
#pragma once

namespace oar::api {

// A fingerprint begins with "b", as llama.cpp's do; its tests look for that.
inline constexpr const char* kVersion = OAR_VERSION;
inline constexpr const char* kFingerprint = "build-oar-" OAR_VERSION;

// The extensions of the Open Inference Protocol that both transports honour. Not "schedule_policy": a
// request's timeout counts, its priority is refused.
inline constexpr const char* kExtensions[] = {"parameters",
                                              "statistics",
                                              "model_configuration",
                                              "model_repository",
                                              "binary_tensor_data",
                                              "classification",
                                              "trace",
                                              "logging"};
// Where it is on.
inline constexpr const char* kMemoryExtension = "system_shared_memory";

}  // namespace oar::api
