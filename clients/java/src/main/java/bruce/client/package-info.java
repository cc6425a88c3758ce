/**
 * Sends messages to the bruce daemon, which delivers them to Kafka.
 *
 * <p>{@link bruce.client.StreamClient} sends {@link bruce.client.Message}s over a UNIX stream socket or TCP.
 */
package bruce.client;
