// SELinux labels of files on the host that every container may use: the hook library, an allocation's folder and
// socket.
#ifndef SLUICE_COMMON_SELINUX_CONTAINER_LABEL_H_
#define SLUICE_COMMON_SELINUX_CONTAINER_LABEL_H_

#include <string>

namespace sluice {

// The label for such files: container_file_t without categories, so that containers of every category may use it.
// Empty if the kernel runs without SELinux.
std::string ContainerLabel();

// Gives the file, folder or socket at `path` the label. An empty label: nothing to do. False: `error` is a sentence
// with the path, the reason and the accepted setting. A new file has its parent's label, which containers may not use.
bool SetContainerLabel(const std::string& path, const std::string& label, std::string* error);

// The label of `path`; empty: it has none, or cannot be read.
std::string LabelOf(const std::string& path);

}  // namespace sluice

#endif  // SLUICE_COMMON_SELINUX_CONTAINER_LABEL_H_
