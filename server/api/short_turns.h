// Threads that answer within microseconds, beside others that compute for as long as they may.
#pragma once

namespace oar::api {

// Asks the system to run the calling thread soon and for little at a time: Linux from 6.12 on; older ones
// keep their ways. Where all processors compute, a request that is refused at once would otherwise wait
// milliseconds for somebody's turn to end.
void prefer_short_turns();

}  // namespace oar::api
