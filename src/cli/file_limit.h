#pragma once

namespace calandra {

/// Every connection is a file: as many as the system lets this process have, not the few that it begins with.
void raise_file_limit();

}  // namespace calandra
