/** Appenders for Logback and Log4j 2. */
package bruce.client.logging;
