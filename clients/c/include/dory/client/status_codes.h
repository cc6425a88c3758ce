/* The status codes of Dory's C client library. */

#ifndef DORY_CLIENT_STATUS_CODES_H
#define DORY_CLIENT_STATUS_CODES_H

enum {
    DORY_OK = 0,
    DORY_BUF_TOO_SMALL = -1,
    DORY_TOPIC_TOO_LARGE = -2,
    DORY_MSG_TOO_LARGE = -3,
    DORY_CLIENT_SOCK_IS_OPENED = -4,
    DORY_NO_OPTIONS_GIVEN = -5,
    DORY_SERVER_SOCK_PATH_TOO_LONG = -6
};

#endif
