#pragma once
// A process of its own for measurements on a machine that is shared with others: a session, the highest priority, and that
// priority for the session as a whole, which is what counts where the kernel groups processes by session (autogroup).

#include <optional>
#include <string>

namespace calandra {

/// Goes on in a child process that is to be undisturbed and returns nothing there; `refused` says in one line what the system did
/// not permit, or is empty. In the parent it returns the child's exit code once the child has ended; until then the parent hands
/// signals on, since the terminal's Ctrl-C does not reach another session. To be called before there are threads. Throws Error if
/// there is no process to be had.
std::optional<int> go_on_undisturbed(std::string& refused);

}  // namespace calandra
