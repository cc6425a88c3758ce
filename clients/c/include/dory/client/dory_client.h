/* Dory's calls that build messages, for programs that were written for libdory_client: link with -lbruce instead. */

#ifndef DORY_CLIENT_DORY_CLIENT_H
#define DORY_CLIENT_DORY_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include <dory/client/status_codes.h>

#ifdef __cplusplus
extern "C" {
#endif

const char *dory_get_build_id(void);

int dory_find_any_partition_msg_size(size_t topic_len, size_t key_len, size_t value_len, size_t *out_size);

int dory_find_partition_key_msg_size(size_t topic_len, size_t key_len, size_t value_len, size_t *out_size);

int dory_write_any_partition_msg(void *out_buf, size_t out_buf_size, const char *topic, int64_t timestamp,
                                 const void *key, size_t key_size, const void *value, size_t value_size);

int dory_write_partition_key_msg(void *out_buf, size_t out_buf_size, int32_t partition_key, const char *topic,
                                 int64_t timestamp, const void *key, size_t key_size, const void *value,
                                 size_t value_size);

#ifdef __cplusplus
}
#endif

#endif
