/* SPDX-License-Identifier: Apache-2.0 */
/* A file of its own because <linux/tcp.h>, which has tcpi_bytes_acked, does not go with <netinet/tcp.h>. */
#include "daemon/io/tcp.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

bool nl_tcp_arrived(int fd, uint64_t *arrived, uint64_t *on_their_way) {
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);
    int queued = 0;

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 || ioctl(fd, SIOCOUTQ, &queued) != 0)
        return false;
    *arrived = info.tcpi_bytes_acked;
    *on_their_way = (uint64_t)queued;
    return true;
}
